// SPDX-License-Identifier: Apache-2.0
// Runs a published program whose main() has large sizes: SOURCE is included as it is, with its main() under another
// name, and CALL is made in its place.
#define main main_of_source
#include SOURCE
#undef main

int main() {
  CALL;
  return 0;
}
