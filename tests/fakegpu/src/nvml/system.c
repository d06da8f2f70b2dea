#include "nvml.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    nvmlReturn_t result = nvml_ready(version);
    return result != NVML_SUCCESS ? result : nvml_text(version, length, nvml.config.driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    nvmlReturn_t result = nvml_ready(version);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char text[64];
    snprintf(text, sizeof text, "%d.%s", nvml.config.cuda_version / 1000, nvml.config.driver_version);
    return nvml_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    nvmlReturn_t result = nvml_ready(version);
    if (result == NVML_SUCCESS) {
        *version = nvml.config.cuda_version;
    }
    return result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* The command line's first word, as seen from here; the name is cut to the length. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    nvmlReturn_t result = nvml_ready(name);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (length == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    char path[64], command[4096] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return NVML_ERROR_NOT_FOUND;
    }
    size_t bytes = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    command[bytes] = '\0';
    snprintf(name, length, "%s", command);
    return NVML_SUCCESS;
}
