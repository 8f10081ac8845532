// What a program that the script starts is given, so that it sees the same files.
#pragma once

namespace zerokit::files {

constexpr char kSettings[] = "ZEROKIT_FILES=", kPreload[] = "LD_PRELOAD=";

void inherit(const char* settings, const char* library);

}  // namespace zerokit::files
