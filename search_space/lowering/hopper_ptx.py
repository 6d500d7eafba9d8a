"""PTX idioms of Hopper kernels as TIRx spells them: descriptors, TMA names, device functions.

PTX ISA 9.0: section 9.7.15 (wgmma), 9.7.9.25 (cp.async.bulk.tensor), 9.7.13.15 (mbarrier).
"""

import os

# TVM would otherwise look for NVRTC's Python package; here only CUDA source is wanted, nvcc is called by the builder.
os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")

WGMMA_TYPE = {"float16": "f16", "bfloat16": "bf16"}
ADDRESS_BITS = 0x3FFFF


def tma_load(rank, multicast):
    name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return name + (".multicast::cluster" if multicast else "")


def tma_store(rank):
    return f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"


def descriptor_high(leading, stride):
    """All of a wgmma matrix descriptor but the address; offsets in units of 16 bytes, 128-byte swizzle.

    K-major: `stride` = next 8 rows, `leading` is not read. MN-major: `stride` = next 8 of K, `leading` = next
    128-byte slab of M or N.
    """
    return (leading << 16) | (stride << 32) | (1 << 62)


def fence_accumulators(n):
    """(name, source): pins accumulators, so that nothing which reads them moves above. Without it ptxas may use
    them while wgmma writes them, or serialise the wgmmas."""
    name = f"tw_fence_accumulators_{n}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* a) {{\n"
        "#pragma unroll\n"
        f'  for (int i = 0; i < {n}; ++i) asm volatile("" : "+f"(a[i]) :: "memory");\n'
        "}\n"
    )


def put_partial(n):
    """(name, source): a warp stores its accumulators to its slot in L2 and raises its flag."""
    name = f"tw_put_partial_{n}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* a, float* slot, int* flag) {{\n"
        "  int lane = threadIdx.x & 31;\n"
        "#pragma unroll\n"
        f"  for (int i = 0; i < {n}; i += 4)\n"
        "    __stcg(reinterpret_cast<float4*>(slot) + i * 8 + lane, make_float4(a[i], a[i + 1], a[i + 2], a[i + 3]));\n"
        "  __threadfence();\n"
        "  __syncwarp();\n"
        '  if (lane == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(flag) : "memory");\n'
        "}\n"
    )


def add_partial(n):
    """(name, source): a warp waits for a flag, adds that slot to its accumulators and lowers the flag again."""
    name = f"tw_add_partial_{n}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* a, float* slot, int* flag) {{\n"
        "  int lane = threadIdx.x & 31;\n"
        "  int seen = 0;\n"
        "  if (lane == 0) {\n"
        '    do { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); } while (!seen);\n'
        "  }\n"
        "  __syncwarp();\n"
        "  __threadfence();\n"
        "#pragma unroll\n"
        f"  for (int i = 0; i < {n}; i += 4) {{\n"
        "    float4 v = __ldcg(reinterpret_cast<float4*>(slot) + i * 8 + lane);\n"
        "    a[i] += v.x; a[i + 1] += v.y; a[i + 2] += v.z; a[i + 3] += v.w;\n"
        "  }\n"
        "  __syncwarp();\n"
        '  if (lane == 0) asm volatile("st.relaxed.gpu.global.s32 [%0], 0;" :: "l"(flag) : "memory");\n'
        "}\n"
    )
