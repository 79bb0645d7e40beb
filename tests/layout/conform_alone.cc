// `switchyard conform` without the rest of the program: what the thread sanitizer watches is built in half the time.
#include "core/base/environment.h"
#include "tools/conform/conform.h"

int main(int count, char** arguments) {
  return switchyard::conform::ConformMain({switchyard::ProgramFolder() + "/conform_alone"},
                                          {arguments + 1, arguments + count});
}
