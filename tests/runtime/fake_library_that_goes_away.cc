// What fake_missing_library.so was linked against, and does not find when it is loaded: it lies on no search path.
extern "C" int switchyard_library_that_goes_away() { return 0; }
