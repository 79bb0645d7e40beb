#include "core/runtime/plugins/probe.h"

// A library that was accepted is not to be refused for what a sanitizer reports when the process ends.
#if defined(__SANITIZE_ADDRESS__)
extern "C" int __lsan_is_turned_off() { return 1; }
#elif defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }
#endif

int main(int argc, char** argv) { return switchyard::ProbeMain(argc, argv); }
