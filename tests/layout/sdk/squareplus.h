/* An op of one's own, as the program that defines it and the plugin that runs it both see it.
 *
 * example_squareplus: x → y = (x + √(x² + b))/2, a smooth ReLU (Barron, "Squareplus", 2021).
 * example_squareplus_backward: x, dy → dx = dy·(1 + x/√(x² + b))/2 */
#ifndef EXAMPLE_SQUAREPLUS_H_
#define EXAMPLE_SQUAREPLUS_H_

#include "core/abi/base.h"

typedef struct example_squareplus_attributes {
  float b;
} example_squareplus_attributes;

#endif /* EXAMPLE_SQUAREPLUS_H_ */
