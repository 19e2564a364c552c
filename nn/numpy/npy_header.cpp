#include "lockstep/nn/numpy/npy_header.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxDims = 64;

struct Spelling {
  std::string_view descr;
  DType dtype;
};

constexpr Spelling kSpellings[] = {
    {"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16},  {"<i8", DType::kI64},
    {"<i4", DType::kI32}, {"|u1", DType::kU8},  {"|b1", DType::kBool}, {"|i1", DType::kI8},
};

// Reads the dictionary: a Python literal of strings, booleans, whole numbers and tuples, in which
// NumPy puts three members. What else Python could mean by such a text is refused.
class Parser {
 public:
  Parser(std::string_view text, std::string_view what, std::string_view op)
      : rest_(text), what_(what), op_(op) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      member(string());
      // The last comma may be left out.
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_spaces();
    if (!rest_.empty()) corrupt("has something after its dictionary");
    if (!dtype_ || !fortran_order_ || !shape_) {
      corrupt("wants 'descr', 'fortran_order' and 'shape', one of which is missing");
    }
    NpyHeader header;
    header.dtype = *dtype_;
    header.fortran_order = *fortran_order_;
    header.shape = *std::move(shape_);
    header.data_bytes = elements_ * size_of(header.dtype);
    return header;
  }

 private:
  [[noreturn]] void corrupt(std::string_view message) const {
    throw Error(ErrorCode::kCorrupt, op_, str_cat(what_, ": the header of the array ", message));
  }

  void skip_spaces() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
  }
  bool accept(char c) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      corrupt(str_cat("wants a '", std::string_view(&c, 1), "' before '", next(), "'"));
  }
  bool accept(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  // The next few characters, for errors.
  std::string next() const {
    std::string text(rest_.substr(0, 16));
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return text;
  }

  std::string_view string() {
    skip_spaces();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const size_t end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : rest_.npos;
    if (end == rest_.npos) corrupt(str_cat("wants a string at '", next(), "'"));
    const std::string_view text = rest_.substr(1, end - 1);
    if (text.find('\\') != text.npos) corrupt("has a string with a backslash");
    rest_.remove_prefix(end + 1);
    return text;
  }

  void member(std::string_view key) {
    expect(':');
    if (key == "descr" && !dtype_) {
      descr();
    } else if (key == "fortran_order" && !fortran_order_) {
      fortran_order_ = accept("True");
      if (!*fortran_order_ && !accept("False")) corrupt("wants True or False for fortran_order");
    } else if (key == "shape" && !shape_) {
      shape();
    } else {
      corrupt(str_cat("has a member that is unknown or there twice, before '", next(), "'"));
    }
  }

  void descr() {
    skip_spaces();
    if (rest_.starts_with('[')) {
      throw Error(ErrorCode::kMismatch, op_,
                  str_cat(what_,
                          ": is an array of records, which Lockstep has not: save each "
                          "field as an array of its own"));
    }
    const std::string_view text = string();
    for (const Spelling& spelling : kSpellings) {
      // Numbers of one byte have no order; NumPy writes '|', others may not.
      const bool byte = spelling.descr[0] == '|';
      if (text == spelling.descr ||
          (byte && text.size() == 3 && std::string_view("<>=").find(text[0]) != text.npos &&
           text.substr(1) == spelling.descr.substr(1))) {
        dtype_ = spelling.dtype;
      }
    }
    if (dtype_) return;
    const bool plain = std::all_of(text.begin(), text.end(),
                                   [](char c) { return c > ' ' && c <= '~' && c != '\''; });
    if (!plain || text.size() < 2) corrupt("has a 'descr' that is no dtype");
    std::string advice = "convert it with .astype() to float32, int64 or another";
    if (text.find('O') != text.npos) advice = "Python objects are never read: save numbers";
    if (text.starts_with('>')) {
      advice = str_cat("it is big endian: convert it with .astype('<", text.substr(1), "')");
    }
    throw Error(ErrorCode::kMismatch, op_,
                str_cat(what_, ": is an array of the dtype '", text, "', which Lockstep has not; ",
                        advice));
  }

  // "()", "(3,)", "(3, 5)". Sizes of 0 count as 1 for the bound, so that strides fit too.
  void shape() {
    expect('(');
    Shape& sizes = shape_.emplace();
    uint64_t bound = uint64_t{1} << 59;
    elements_ = 1;
    while (!accept(')')) {
      skip_spaces();
      uint64_t n = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), n);
      if (error == std::errc::invalid_argument) corrupt(str_cat("wants a size at '", next(), "'"));
      if (error != std::errc() || n > bound || sizes.size() == kMaxDims) {
        corrupt(str_cat("has a shape that is out of bounds: want at most ", kMaxDims,
                        " sizes and 2^59 elements"));
      }
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      accept('L');  // Python 2's long numbers
      bound /= std::max<uint64_t>(n, 1);
      elements_ *= n;
      sizes.push_back(static_cast<int64_t>(n));
      if (accept(',')) continue;
      expect(')');
      // "(3)" is a number in parentheses.
      if (sizes.size() == 1) corrupt("has a shape that is not a tuple");
      break;
    }
  }

  std::string_view rest_;
  std::string_view what_;
  std::string_view op_;
  std::optional<DType> dtype_;
  std::optional<bool> fortran_order_;
  std::optional<Shape> shape_;
  uint64_t elements_ = 1;
};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

NpyHeader decode_npy_header(std::string_view file, std::string_view what, std::string_view op) {
  const auto corrupt = [&](std::string_view message) {
    throw Error(ErrorCode::kCorrupt, op, str_cat(what, ": ", message));
  };
  if (!file.starts_with(kMagic)) corrupt("does not begin as a .npy file does");
  constexpr size_t kVersionAt = kMagic.size();
  if (file.size() < kVersionAt + 2) corrupt("was cut short in its header");
  const auto major = static_cast<uint8_t>(file[kVersionAt]);
  const auto minor = static_cast<uint8_t>(file[kVersionAt + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(ErrorCode::kMismatch, op,
                str_cat(what, ": is a .npy file of version ", major, ".", minor,
                        "; this reader knows 1.0, 2.0 and 3.0"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t text_at = kVersionAt + 2 + length_bytes;
  if (file.size() < text_at) corrupt("was cut short in its header");
  const uint64_t bytes = little_endian(file.substr(kVersionAt + 2, length_bytes));
  if (bytes > kMaxNpyHeader) {
    corrupt(str_cat("has a header of ", bytes, " bytes, more than the ", kMaxNpyHeader,
                    " that are read"));
  }
  if (bytes > file.size() - text_at) corrupt("was cut short in its header");
  NpyHeader header = Parser(file.substr(text_at, bytes), what, op).parse();
  header.data_begin = text_at + bytes;
  return header;
}

std::string encode_npy_header(DType dtype, const Shape& shape, std::string_view op) {
  const auto* spelling = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                      [&](const Spelling& s) { return s.dtype == dtype; });
  check(spelling != std::end(kSpellings), op, [&] {
    return str_cat("NumPy has no ", name(dtype), ": convert the tensor with to(DType::kF32) first");
  });
  std::string text =
      str_cat("{'descr': '", spelling->descr, "', 'fortran_order': False, 'shape': (");
  for (size_t i = 0; i < shape.size(); ++i) {
    text += str_cat(i == 0 ? "" : " ", shape[i], i + 1 < shape.size() || i == 0 ? "," : "");
  }
  text += "), }";
  // Magic, version, length, text and a newline fill whole 64 bytes, so that data is aligned. NumPy
  // leaves room for the first size to grow to 21 digits, and pads by 1 to 64.
  constexpr size_t kAlignment = 64;
  constexpr size_t kGrowth = 21;
  if (!shape.empty()) text.append(kGrowth - str_cat(shape[0]).size(), ' ');
  const size_t used = kMagic.size() + 4 + text.size() + 1;
  text.append(kAlignment - used % kAlignment, ' ');
  text += '\n';
  std::string out(kMagic);
  out += '\1';
  out += '\0';
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace lockstep::nn
