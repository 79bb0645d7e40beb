// The library used from outside the tree: headers, libraries and third-party packages all come from
// find_package(switchyard).
#include <iostream>

#include "core/base/names.h"
#include "core/base/status.h"

int main() {
  const absl::Status status =
      switchyard::InvalidArgument("no model is called vti{}", switchyard::DidYouMean("vti", {"vit", "mlp"}));
  std::cout << switchyard::Message(status) << "\n";
  return status.ok() ? 1 : 0;
}
