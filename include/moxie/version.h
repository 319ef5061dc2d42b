// The library's version.
#pragma once
#define MOXIE_VERSION "0.1.0"
