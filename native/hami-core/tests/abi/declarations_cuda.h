/* Every function that NVIDIA's headers declare, in all versions, those of the per-thread default stream included. */
#include <stddef.h>
#include <stdint.h>
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <vdpau/vdpau.h>
#include <cudaVDPAU.h>
