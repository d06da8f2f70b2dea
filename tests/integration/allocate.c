/* Allocates and frees device memory until its standard input ends, then says how often and what went wrong.
 *
 * It holds up to 32 MiB and asks the library three things in turn: to allocate, to free, and how much there is. */
#include <poll.h>

#include "../cuda_client.h"

enum { BLOCKS = 16, BLOCK = 2 << 20, PAUSE_MS = 20 };

int main(void)
{
    struct cuda_client cuda = cuda_begin();
    unsigned long long blocks[BLOCKS] = {0};
    unsigned long allocations = 0;
    size_t unused, total;
    must(cuda.get_info(&unused, &total), "cuMemGetInfo");
    printf("total %zu\n", total);
    fflush(stdout);
    for (struct pollfd input = {.fd = 0, .events = POLLIN}; poll(&input, 1, PAUSE_MS) == 0;) {
        unsigned long long *block = &blocks[allocations % BLOCKS];
        size_t again;
        if (*block)
            must(cuda.give_back(*block), "cuMemFree");
        must(cuda.allocate(block, BLOCK), "cuMemAlloc");
        must(cuda.get_info(&unused, &again), "cuMemGetInfo");
        must(again != total, "total changed");
        allocations++;
    }
    printf("allocations %lu\n", allocations);
    return 0;
}
