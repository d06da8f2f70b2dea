/* What only the driver knows before it has answered, by a driver of this file. */
#include "../src/charge.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

enum { PITCH = 2048, ROWS = 100000 };

static CUresult pitched(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)width;
    (void)height;
    (void)element;
    *pointer = 0x7000000;
    *pitch = PITCH;
    return CUDA_SUCCESS;
}

static CUresult first_pitched(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)width;
    (void)height;
    (void)element;
    *pointer = 0x7000000;
    *pitch = PITCH;
    return CUDA_SUCCESS;
}

TEST(a_pitch_is_charged_as_the_driver_makes_it)
{
    CUdeviceptr pointer;
    CUdeviceptr_v1 first_pointer;
    size_t pitch;
    unsigned first_pitch;
    attached_begin();
    cuda.cuMemAllocPitch_v2 = pitched;
    cuda.cuMemAllocPitch = first_pitched;
    CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 1000, ROWS, 4), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(0), (uint64_t)PITCH * ROWS);
    attached_begin();
    CHECK_EQUAL(cuMemAllocPitch(&first_pointer, &first_pitch, 1000, ROWS, 4), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(0), (uint64_t)PITCH * ROWS);
}
