/* A program that uses the GPU: `client [hold] MIB...` allocates each, prints the driver's result of each on a line, and
 * with `hold` keeps what it got until it is ended. */
#include <string.h>
#include <unistd.h>

#include "../cuda_client.h"

int main(int count, char **words)
{
    struct cuda_client cuda = cuda_begin();
    size_t unused, total;
    must(cuda.get_info(&unused, &total), "cuMemGetInfo");
    printf("total %zu\n", total);

    int hold = count > 1 && strcmp(words[1], "hold") == 0;
    for (int index = 1 + hold; index < count; index++) {
        unsigned long long address;
        printf("%s MiB: %d\n", words[index], cuda.allocate(&address, (size_t)strtoul(words[index], NULL, 10) << 20));
    }
    fflush(stdout);
    while (hold)
        pause();
    return 0;
}
