/* A stand-in for libnvidia-ml.so.1: one GPU that is not there. Its figures are made up; it is for tests only.

   STAND_IN_GPUS    how many GPUs there are (1)
   STAND_IN_LOG     file that every change of clocks is written to
   STAND_IN_DENIED  changes of clocks are not permitted
   STAND_IN_LOST    file; once it exists, the GPU is lost */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, LOST = 15 };
enum { WATTS = 250, ARCHITECTURE_HOPPER = 9, LARGEST_MHZ = 1980 };

static int places[16];

static unsigned count(void) { const char *set = getenv("STAND_IN_GPUS"); return set ? (unsigned)atoi(set) : 1; }
static int gone(void) { const char *file = getenv("STAND_IN_LOST"); return file && access(file, F_OK) == 0; }

static int logged(const char *what, unsigned low, unsigned high)
{
    if (gone()) return LOST;
    if (getenv("STAND_IN_DENIED")) return NO_PERMISSION;
    if (high > LARGEST_MHZ) return BAD_ARGUMENT;
    FILE *log = getenv("STAND_IN_LOG") ? fopen(getenv("STAND_IN_LOG"), "a") : NULL;
    if (log) { fprintf(log, "%s %u %u\n", what, low, high); fclose(log); }
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost (stand-in)" : "stand-in"; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count(); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **device)
{
    if (index >= count()) return BAD_ARGUMENT;
    *device = &places[index];
    return SUCCESS;
}

int nvmlDeviceGetName(int *device, char *name, unsigned size)
{
    (void)device;
    snprintf(name, size, "stand-in GPU");
    return SUCCESS;
}

int nvmlDeviceGetUUID(int *device, char *name, unsigned size)
{
    snprintf(name, size, "GPU-stand-in-%d", (int)(device - places));
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(int *device, unsigned *kind) { (void)device; *kind = ARCHITECTURE_HOPPER; return SUCCESS; }
int nvmlDeviceGetC2cModeInfoV(int *device, void *info) { (void)device; (void)info; return NOT_SUPPORTED; }

int nvmlDeviceGetTotalEnergyConsumption(int *device, unsigned long long *millijoules)
{
    struct timespec now;
    (void)device;
    if (gone()) return LOST;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (unsigned long long)((now.tv_sec + now.tv_nsec * 1e-9) * WATTS * 1000);
    return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(int *device, unsigned low, unsigned high)
{
    (void)device;
    return logged("lock", low, high);
}

int nvmlDeviceResetGpuLockedClocks(int *device) { (void)device; return logged("reset", 0, 0); }
