/* cuGetExportTable: the driver's private tables, of which the fake has one of its own, its clock. */
#include "../common/clock.h"
#include "driver.h"

#include <string.h>

/* fa4e9b0c-c10c-4000-8000-66616b656770 */
static const CUuuid CLOCK_TABLE = {
    {'\xfa', '\x4e', '\x9b', '\x0c', '\xc1', '\x0c', '\x40', 0, '\x80', 0, 'f', 'a', 'k', 'e', 'g', 'p'}};

static const struct {
    size_t bytes; /* as every table of the driver begins */
    uint64_t (*now_ns)(void);
    void (*sleep_until_ns)(uint64_t wake_ns);
    void (*join)(void);
    void (*leave)(void);
} clock_table = {sizeof clock_table, clock_now_ns, clock_sleep_until_ns, clock_join, clock_leave};

CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (table == NULL || id == NULL || memcmp(id, &CLOCK_TABLE, sizeof CLOCK_TABLE) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *table = &clock_table;
    return driver_leave(CUDA_SUCCESS);
}
