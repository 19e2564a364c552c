#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "layout_rules.h"

namespace lockstep::layout {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const std::string kRoot = LOCKSTEP_SOURCE_DIR;

const Sources& tree() {
  static const Sources sources = read_sources(kRoot);
  return sources;
}

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string including(const std::string& what) { return "#pragma once\n#include " + what + "\n"; }

TEST(LayoutRules, CoreAndCommNeverIncludeEachOther) {
  EXPECT_THAT(include_faults({{"core/a.h", including("\"lockstep/comm/b.h\"")}}),
              ElementsAre(AllOf(HasSubstr("core/a.h"), HasSubstr("lockstep/comm/b.h"))));
  EXPECT_THAT(include_faults({{"comm/a.cpp", including("\"lockstep/core/b.h\"")}}),
              ElementsAre(AllOf(HasSubstr("comm/a.cpp"), HasSubstr("lockstep/core/b.h"))));
}

TEST(LayoutRules, NoFolderIncludesOneAboveIt) {
  for (const char* above : {"core", "comm", "nn"}) {
    const std::string header = "\"lockstep/" + std::string(above) + "/b.h\"";
    EXPECT_THAT(include_faults({{"kernels/cpu/a.cpp", including(header)}}),
                ElementsAre(HasSubstr(above)));
    EXPECT_THAT(include_faults({{"nn/a.cpp", including(header)}}), IsEmpty());
  }
  EXPECT_THAT(include_faults({{"core/a.h", including("\"lockstep/nn/b.h\"")},
                              {"comm/a.h", including("\"lockstep/nn/b.h\"")}}),
              testing::SizeIs(2));
  EXPECT_THAT(include_faults({{"core/a.h", including("\"lockstep/kernels/b.h\"")},
                              {"comm/a.h", including("\"lockstep/kernels/b.h\"")}}),
              IsEmpty());
}

TEST(LayoutRules, LibrariesWriteTheirOwnHeadersWithThePrefix) {
  EXPECT_THAT(include_faults({{"nn/a.cpp", including("\"b.h\"")}}), ElementsAre(HasSubstr("b.h")));
  EXPECT_THAT(include_faults({{"nn/a.cpp", including("\"../core/b.h\"")}}),
              ElementsAre(HasSubstr("../core/b.h")));
  EXPECT_THAT(include_faults({{"nn/a.cpp", including("\"lockstep/lockstep.h\"")}}),
              ElementsAre(HasSubstr("lockstep/lockstep.h")));
  EXPECT_THAT(include_faults({{"nn/a.cpp", including("\"absl/strings/str_cat.h\"")},
                              {"tests/nn/a.cpp", including("\"b.h\"")}}),
              IsEmpty());
}

TEST(LayoutRules, CudaHeadersStayWhereDevicesAreTouched) {
  const std::string cuda = including("<cuda_runtime.h>");
  EXPECT_THAT(include_faults({{"kernels/cuda/fold.cu", cuda},
                              {"comm/cuda_transport.cpp", cuda},
                              {"comm/nccl.cpp", cuda},
                              {"comm/nccl.h", including("<nccl.h>")}}),
              IsEmpty());
  EXPECT_THAT(include_faults({{"comm/ring.cpp", cuda}}), ElementsAre(HasSubstr("comm/ring.cpp")));
  EXPECT_THAT(include_faults({{"nn/reducer.cpp", cuda}}), ElementsAre(HasSubstr("cuda_runtime.h")));
  EXPECT_THAT(include_faults({{"kernels/cuda/a.cu", including("<nccl.h>")}}),
              ElementsAre(HasSubstr("nccl.h")));
  EXPECT_THAT(include_faults({{"kernels/cuda/a.cu", including("<cublasLt.h>")},
                              {"kernels/a.cpp", including("<cublasLt.h>")},
                              {"core/a.cpp", including("<cudnn_graph.h>")}}),
              ElementsAre(HasSubstr("core/a.cpp"), HasSubstr("kernels/a.cpp")));
}

TEST(LayoutRules, ThePublicApiIsWhatTheUmbrellaReaches) {
  const Sources sources = {{"nn/lockstep.h", including("\"lockstep/nn/module.h\"")},
                           {"nn/module.h", including("\"lockstep/core/tensor.h\"")},
                           {"core/tensor.h", including("<cuda_runtime.h>")},
                           {"core/engine.h", including("<dnnl.hpp>")},
                           {"examples/a.cpp", including("\"lockstep/core/engine.h\"")},
                           {"examples/b.cpp", including("\"lockstep/lockstep.h\"")},
                           {"tools/a.cpp", including("\"lockstep/core/engine.h\"")},
                           {"tests/core/a.cpp", including("\"lockstep/core/engine.h\"")}};
  EXPECT_THAT(public_headers(sources),
              UnorderedElementsAre("nn/lockstep.h", "nn/module.h", "core/tensor.h"));
  EXPECT_THAT(public_api_faults(sources),
              UnorderedElementsAre(AllOf(HasSubstr("core/tensor.h"), HasSubstr("cuda_runtime.h")),
                                   AllOf(HasSubstr("examples/a.cpp"), HasSubstr("engine.h"))));
}

TEST(LayoutRules, LongFilesAndUnguardedHeadersAreFaults) {
  const std::string lines(600, '\n');
  EXPECT_THAT(form_faults({{"core/a.cpp", lines}}), IsEmpty());
  EXPECT_THAT(form_faults({{"core/a.cpp", lines + "\n"}}), ElementsAre(HasSubstr("601")));
  EXPECT_THAT(form_faults({{"core/a.h", "int a;\n"}}), ElementsAre(HasSubstr("#pragma once")));
}

TEST(LayoutRules, TakeTheFirstCppBlockOfAMarkdownFile) {
  EXPECT_EQ(first_cpp_block("a\n```\nb\n```\n```cpp\nint c;\n\nint d;\n```\n```cpp\ne\n```\n"),
            "int c;\n\nint d;\n");
  EXPECT_THROW(first_cpp_block("```cpp\nint a;\n"), std::runtime_error);
  EXPECT_THROW(first_cpp_block("```sh\nmake\n```\n"), std::runtime_error);
}

TEST(Layout, TheReadmesProgramIsTheOneThatIsBuilt) {
  EXPECT_EQ(first_cpp_block(read("README.md")), read("examples/readme.cpp"));
}

TEST(Layout, SourcesAreRead) {
  EXPECT_THAT(tree(), Contains(testing::Key("kernels/dtype.h")));
  EXPECT_THAT(tree(), Contains(testing::Key("tests/layout/layout_test.cpp")));
  EXPECT_THAT(public_headers(tree()), Contains("core/tensor.h"));
}

TEST(Layout, IncludesKeepTheOrderOfTheFolders) { EXPECT_THAT(include_faults(tree()), IsEmpty()); }

TEST(Layout, ExamplesUseThePublicApiAndItStandsAlone) {
  EXPECT_THAT(public_api_faults(tree()), IsEmpty());
}

TEST(Layout, FilesAreShortAndHeadersGuarded) { EXPECT_THAT(form_faults(tree()), IsEmpty()); }

}  // namespace
}  // namespace lockstep::layout
