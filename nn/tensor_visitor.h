#pragma once

#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {
namespace internal {

template <class T>
inline constexpr bool is_tuple_like = false;
template <class... T>
inline constexpr bool is_tuple_like<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple_like<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

}  // namespace internal

// Calls visit(Tensor&) for each defined tensor in what a module returned: a tensor, and any nesting
// of optional, pair, tuple, map and ranges (vector, array, …). Numbers, bools, enums and strings
// hold none. A type of your own takes part with a member
//
//   template <class Visitor> void visit_tensors(Visitor&& visitor) { visitor(hidden),
//   visitor(cell); }
//
// which hands over its members, in whatever types.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (value.defined()) visit(value);
  } else if constexpr (requires { value.visit_tensors([](auto&) {}); }) {
    value.visit_tensors([&](auto& member) { for_each_tensor(member, visit); });
  } else if constexpr (internal::is_optional<T>) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (internal::is_tuple_like<T>) {
    std::apply([&](auto&... member) { (for_each_tensor(member, visit), ...); }, value);
  } else if constexpr (std::is_arithmetic_v<std::remove_const_t<T>> ||
                       std::is_enum_v<std::remove_const_t<T>> ||
                       std::is_convertible_v<T, std::string_view>) {
    // Holds no tensor.
  } else {
    static_assert(
        std::ranges::range<T>,
        "give the type a member template visit_tensors(visitor), see nn/tensor_visitor.h");
    for (auto& element : value) for_each_tensor(element, visit);
  }
}

}  // namespace lockstep::nn
