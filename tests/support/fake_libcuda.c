/* A CUDA driver with eight devices and no hardware, for tests of how devices are found: it lists and describes, applies
   CUDA_VISIBLE_DEVICES as NVIDIA's driver documents it (what follows an invalid entry is hidden), and runs nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 8 };
static int visible[DEVICES], count;

static void uuid_text(int device, char *out) { sprintf(out, "GPU-000000%02x-0000-0000-0000-0000000000ff", device); }

static int find(const char *entry) {
  char text[64], *end;
  long index = strtol(entry, &end, 10);
  if (*entry && !*end) return index >= 0 && index < DEVICES ? (int)index : -1;
  for (int i = 0; i < DEVICES; ++i) {
    uuid_text(i, text);
    if (*entry && !strncmp(entry, text, strlen(entry))) return i;
  }
  return -1;
}

int cuInit(unsigned flags) {
  const char *mask = getenv("CUDA_VISIBLE_DEVICES");
  (void)flags;
  count = 0;
  if (!mask) {
    for (; count < DEVICES; ++count) visible[count] = count;
  } else {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", mask);
    for (char *entry = strtok(copy, ","); entry; entry = strtok(NULL, ",")) {
      int device = find(entry);
      if (device < 0) break;
      visible[count++] = device;
    }
  }
  return count ? 0 : 100; /* CUDA_ERROR_NO_DEVICE */
}

int cuDeviceGetCount(int *out) { *out = count; return 0; }
int cuDeviceGet(int *out, int index) { *out = visible[index]; return 0; }
int cuDeviceGetName(char *out, int size, int device) { snprintf(out, size, "NVIDIA Fake %d", device); return 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { (void)device; *out = (size_t)80 << 30; return 0; }
int cuDriverGetVersion(int *out) { *out = 13000; return 0; }

int cuDeviceGetUuid_v2(unsigned char *out, int device) {
  memset(out, 0, 16);
  out[3] = (unsigned char)device;
  out[15] = 0xff;
  return 0;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 16: *out = 132; return 0;      /* multiprocessors */
    case 38: *out = 50 << 20; return 0; /* L2 */
    case 75: *out = 9; return 0;
    case 76: *out = 0; return 0;
    case 97: *out = 232448; return 0; /* shared memory of a block, opted in */
    default: return 1;
  }
}
