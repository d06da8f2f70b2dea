/* Contexts for drawing, which the fake GPU does not make: by a driver of this file. */
#include "../src/charge.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "../src/memory/overhead.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

static CUresult make(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    (void)device;
    *context = (CUcontext)0x9000;
    return CUDA_SUCCESS;
}

static CUresult make_for_vdpau(CUcontext *context, unsigned flags, CUdevice device, VdpDevice drawing, VdpGetProcAddress *find)
{
    (void)drawing;
    (void)find;
    return make(context, flags, device);
}

static CUresult end(CUcontext context)
{
    CHECK(context == (CUcontext)0x9000);
    return CUDA_SUCCESS;
}

static CUresult capability(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}

TEST(contexts_for_drawing_cost_what_others_do)
{
    for (unsigned way = 0; way < 4; way++) {
        CUcontext context;
        attached_begin();
        cuda.cuGLCtxCreate = cuda.cuGLCtxCreate_v2 = make;
        cuda.cuVDPAUCtxCreate = cuda.cuVDPAUCtxCreate_v2 = make_for_vdpau;
        cuda.cuDeviceGetAttribute = capability;
        cuda.cuCtxDestroy_v2 = end;
        switch (way) {
        case 0: CHECK_EQUAL(cuGLCtxCreate(&context, 0, 1), CUDA_SUCCESS); break;
        case 1: CHECK_EQUAL(cuGLCtxCreate_v2(&context, 0, 1), CUDA_SUCCESS); break;
        case 2: CHECK_EQUAL(cuVDPAUCtxCreate(&context, 0, 1, 0, NULL), CUDA_SUCCESS); break;
        case 3: CHECK_EQUAL(cuVDPAUCtxCreate_v2(&context, 0, 1, 0, NULL), CUDA_SUCCESS); break;
        }
        CHECK_EQUAL(charge_held(1), overhead_estimate_mib(9, 0) * MIB);
        CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
        CHECK_EQUAL(charge_held(1), 0);
    }
}
