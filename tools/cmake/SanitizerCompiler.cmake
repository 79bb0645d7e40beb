# The sanitized trees are compiled by clang where there is one: in half of the time that g++ takes, and a second compiler reads the code.
find_program(SWITCHYARD_CLANG NAMES clang++-19 clang++-20 clang++-21 clang++)
if(SWITCHYARD_CLANG)
  set(CMAKE_CXX_COMPILER ${SWITCHYARD_CLANG})
  string(REPLACE "clang++" "clang" CMAKE_C_COMPILER ${SWITCHYARD_CLANG})
endif()
