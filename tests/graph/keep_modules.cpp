// LeakSanitizer names no module that has been unloaded, so that the suppressions of scripts/sanitizers/lsan.supp could not
// match the plugins of Open MPI and hwloc: under AddressSanitizer they stay loaded until the process ends.
#ifdef __SANITIZE_ADDRESS__
extern "C" int dlclose(void*) noexcept { return 0; }
#endif
