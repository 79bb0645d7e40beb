// A font of straight strokes on a grid, so that one table serves every size and direction. A glyph is a list of
// strokes, a stroke is a run of points "xy": x from 0 to 4; y upwards with the baseline at 2, small letters up to 6,
// capitals up to 8, descenders down to 0. A stroke of one point is a dot.
#include <algorithm>
#include <cstdint>

#include "core/train/canvas.h"

namespace switchyard {
namespace {

constexpr double kEm = 8.4;  // grid units in the height of the font
constexpr double kBaseline = 2.0;
constexpr double kGap = 1.7;         // between one glyph and the next
constexpr double kSpaceWidth = 1.0;  // before the gap

// Printable ASCII, ' ' to '~'.
constexpr const char* kGlyphs[] = {
    "",                                     // space
    "0804 02",                              // !
    "0806 1816",                            // "
    "1218 3238 0444 0646",                  // #
    "473818070615354443321203 2921",        // $
    "0248 0818170708 4333324243",           // %
    "4206071827260403122244",               // &
    "0806",                                 // '
    "18060412",                             // (
    "08161402",                             // )
    "1418 0527 0725",                       // *
    "0545 2327",                            // +
    "1201",                                 // ,
    "0525",                                 // -
    "02",                                   // .
    "0238",                                 // /
    "180703122233372818",                   // 0
    "172822 1232",                          // 1
    "07182837360232",                       // 2
    "0718283736253433221203 1525",          // 3
    "22280434",                             // 4
    "380805253433221203",                   // 5
    "372818070312223334251504",             // 6
    "083812",                               // 7
    "180706152536372818 1504031222333425",  // 8
    "031222333728180706152536",             // 9
    "02 05",                                // :
    "1201 15",                              // ;
    "370533",                               // <
    "0434 0636",                            // =
    "073503",                               // >
    "07182837362524 22",                    // ?
    "3616143436 344347381807031232",        // @
    "022842 1434",                          // A
    "02082837362505 2534332202",            // B
    "4738180703123243",                     // C
    "02082846442202",                       // D
    "38080232 0525",                        // E
    "380802 0525",                          // F
    "47381807031232434525",                 // G
    "0208 4248 0545",                       // H
    "0802",                                 // I
    "3833221203",                           // J
    "0208 4805 1642",                       // K
    "080232",                               // L
    "0208254842",                           // M
    "02084248",                             // N
    "180703123243473818",                   // O
    "02082837362505",                       // P
    "180703123243473818 2442",              // Q
    "02082837362505 1532",                  // R
    "473818070615354443321203",             // S
    "0848 2822",                            // T
    "080312324348",                         // U
    "082248",                               // V
    "0812263248",                           // W
    "0248 0842",                            // X
    "082548 2522",                          // Y
    "08480242",                             // Z
    "18080212",                             // [
    "0832",                                 // backslash
    "08181202",                             // ]
    "061826",                               // ^
    "0131",                                 // _
    "0817",                                 // `
    "3632 3526160503122233",                // a
    "0802 0516263533221203",                // b
    "3526160503122233",                     // c
    "3832 3526160503122233",                // d
    "04343526160503122233",                 // e
    "281712 0626",                          // f
    "3631201001 3526160503122233",          // g
    "0802 0516263532",                      // h
    "0602 08",                              // i
    "161100 18",                            // j
    "0802 3604 1532",                       // k
    "0802",                                 // l
    "0602 05162522 25364542",               // m
    "0602 0516263532",                      // n
    "160503122233352616",                   // o
    "0600 0516263533221203",                // p
    "3630 3526160503122233",                // q
    "0602 051626",                          // r
    "3616051424332202",                     // s
    "181322 0626",                          // t
    "0603122233 3632",                      // u
    "062246",                               // v
    "0612253246",                           // w
    "0236 0632",                            // x
    "0622 4610",                            // y
    "06360232",                             // z
    "28171605141322",                       // {
    "0901",                                 // |
    "08171625141302",                       // }
    "04152435",                             // ~
};
constexpr const char* kUnknown = "0208383202";  // a box

// The glyph at the start of the text, which it removes: one UTF-8 sequence.
const char* TakeGlyph(const char** at) {
  const auto first = static_cast<unsigned char>(*(*at)++);
  while ((static_cast<unsigned char>(**at) & 0xC0) == 0x80) ++*at;
  return first >= ' ' && first <= '~' ? kGlyphs[first - ' '] : kUnknown;
}

double GlyphWidth(const char* glyph) {
  if (*glyph == '\0') return kSpaceWidth;
  double width = 0;
  for (; *glyph != '\0'; glyph += *glyph == ' ' ? 1 : 2) {
    if (*glyph != ' ') width = std::max(width, static_cast<double>(*glyph - '0'));
  }
  return width;
}

}  // namespace

double TextWidth(const std::string& text, double size) {
  double units = 0;
  for (const char* at = text.c_str(); *at != '\0';) units += GlyphWidth(TakeGlyph(&at)) + kGap;
  return std::max(0.0, units - kGap) * size / kEm;
}

std::vector<std::vector<Point>> TextStrokes(const std::string& text, double size) {
  std::vector<std::vector<Point>> strokes;
  double left = 0;
  for (const char* at = text.c_str(); *at != '\0';) {
    const char* glyph = TakeGlyph(&at);
    bool start = true;
    for (const char* pair = glyph; *pair != '\0';) {
      if (*pair == ' ') {
        start = true;
        ++pair;
        continue;
      }
      if (start) strokes.emplace_back();
      start = false;
      strokes.back().push_back({(left + (pair[0] - '0')) * size / kEm, (kBaseline - (pair[1] - '0')) * size / kEm});
      pair += 2;
    }
    left += GlyphWidth(glyph) + kGap;
  }
  return strokes;
}

}  // namespace switchyard
