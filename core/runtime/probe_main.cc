#include "core/runtime/probe.h"

int main(int argc, char** argv) { return switchyard::ProbeMain(argc, argv); }
