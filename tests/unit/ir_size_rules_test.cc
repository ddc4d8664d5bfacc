// Every op with a size rule is called with arguments of many shapes, and what its rule says is compared with the sizes
// of the results. FRAMETAP_SIZE_SHAPES: how many calls an op (default 20).
// Laws: size_rules/Z1, size_rules/Z2, size_rules/Z3
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/size_rules.h"

namespace frametap {
namespace {

using c10::IValue;
using c10::TypeKind;

// Arguments of ops, by name. `:nk` is a tensor of two dimensions, and a letter is the same random size wherever it is (a
// capital is a larger one). `:(4h,i)` has products, `:n!i` integer elements, `:n!w` 32-bit ones, and `:n!b` bools. `[:n,:k]` is a list of
// tensors, `(n,-1)` of ints, `{2.0}` of floats; `~` is None, T and F are bools, `'…'` is text. One of the alternatives
// a|b is taken. An argument that is not named is chosen by its type (see Pick).
struct Pattern {
  const char* ops;
  const char* args;
};

constexpr Pattern kPatterns[] = {
    {"linear", "input=:k|:nk|:bnk|:abnk weight=:ok|:k bias=~|:o"},
    {"matmul linalg_matmul", "self=:k|:nk|:bnk|:1nk|:abnk other=:k|:km|:bkm|:1km|:abkm|:a1km"},
    {"mm", "self=:nk mat2=:km"},
    {"addmm addmm_", "self=:nm|:m|:|:n1 mat1=:nk mat2=:km"},
    {"bmm", "self=:bnk mat2=:bkm"},
    {"_grouped_mm", "self=:(g,4n,4k) mat2=:(g,4k,4m) offs=~ bias=~ out_dtype=~"},
    {"_transformer_encoder_layer_fwd",
     "src=:(b,n,8) embed_dim=8 num_heads=2 qkv_weight=:(24,8) qkv_bias=:(24) proj_weight=:(8,8) proj_bias=:(8) "
     "norm_weight_1=:(8) norm_bias_1=:(8) norm_weight_2=:(8) norm_bias_2=:(8) ffn_weight_1=:(16,8) ffn_bias_1=:(16) "
     "ffn_weight_2=:(8,16) ffn_bias_2=:(8) mask=~ mask_type=~"},
    {"baddbmm baddbmm_", "self=:bnm|:m|:|:1nm batch1=:bnk batch2=:bkm"},
    {"addbmm", "self=:nm|:m|: batch1=:bnk batch2=:bkm"},
    {"mv", "self=:nk vec=:k"},
    {"addmv addmv_", "self=:n|:1|: mat=:nk vec=:k"},
    {"ger outer", "self=:n vec2=:k"},
    {"addr addr_", "self=:nk|:k|: vec1=:n vec2=:k"},
    {"dot", "self=:n tensor=:n"},
    {"vdot", "self=:n other=:n"},
    {"inner", "self=:k|:nk|:bnk|: other=:k|:mk|:bmk|:"},
    {"tensordot", "self=:nkm other=:knb|:k1b dims_self=(1)|(-2) dims_other=(0)|(-3)"},
    {"tensordot", "self=:nkm other=:mkb|:1kb dims_self=(1,2) dims_other=(1,0)"},
    {"einsum", "equation='bij,bjk->bik'|'bij, bjk -> ik'|'bij,bjk->' tensors=[:bij,:bjk]|[:1ij,:bjk]|[:bi1,:bjk]"},
    {"einsum", "equation='ii->i'|'ij->ji'|'ij->'|'ij->j' tensors=[:ii]|[:ij]"},
    {"cdist", "x1=:nm|:bnm|:1nm|:abnm x2=:km|:bkm|:1km p=2.0|1.0 compute_mode=~"},
    {"bilinear", "input1=:na|:bna input2=:nc|:bnc weight=:oac bias=~|:o"},
    {"cosine_similarity", "x1=:nk|:1k|:k x2=:nk|:n1|:bnk dim=0|1|-1"},
    {"huber_loss kl_div l1_loss mse_loss smooth_l1_loss soft_margin_loss",
     "self=:nk|:1k target=:nk|:k reduction=0|1|2 delta=1.0 beta=1.0"},
    {"cross_entropy_loss nll_loss_nd",
     "self=:nc|:ncm|:ncmk|:c target=:n!i|:nm!i|:nmk!i|:!i|:nc weight=~ reduction=0|1"},
    {"nll_loss", "self=:nc|:c target=:n!i|:!i weight=~ reduction=0|1|2"},
    {"nll_loss2d", "self=:nchw target=:nhw!i weight=~ reduction=0|1|2"},

    {"_unsafe_view view view_copy", "self=:nkm size=(n,k,m)|(-1)|(n,-1)|(nk,m)|(n,-1,m)|(-1,1,m)|(n,km,1)|(nkm)|(0,k)"},
    {"view", "self=: size=()|(1)|(-1)|(1,-1)"},
    {"reshape", "self=:nkm shape=(n,k,m)|(-1)|(n,-1)|(nk,m)|(m,-1,n)|(-1,1,m)|(n,km,1)|(1,-1)|(m,k,n)"},
    {"_reshape_alias", "self=:nk size=(n,k)|(nk)|(k,n) stride=(k,1)|(1)|(n,1)"},
    {"expand expand_copy broadcast_to", "self=:nk|:1k|:n1 size=(n,k)|(-1,k)|(n,-1)|(b,n,k)|(b,-1,-1)|(-1,-1)|(b,n,m)"},
    {"expand", "self=: size=()|(n)|(n,k)"},
    {"expand_as", "self=:n1|:k|:nk|: other=:nk|:bnk"},
    {"reshape_as view_as", "self=:nk other=:kn|:nk|:1nk"},
    {"as_strided as_strided_copy", "self=:88 size=(n,k)|(n)|() stride=(1,2)|(3)|() storage_offset=~|1"},
    {"empty_strided new_empty_strided", "self=:n size=(n,k)|(n)|() stride=(k,1)|(1)|()"},
    {"empty.memory_format full new_empty new_full new_ones new_zeros ones rand rand.generator randn randn.generator "
     "zeros",
     "size=(n,k)|(n)|()|(1,0,k)"},
    {"randint randint.generator randint.low randint.low_generator", "low=0 high=5 size=(n,k)|(n)|()"},
    {"sum_to_size", "self=:nkm size=(1,k,m)|(k,m)|(m)|(1)|()|(n,1,1)"},
    {"permute permute_copy", "self=:nkm dims=(0,1,2)|(2,0,1)|(-1,0,1)|(1,0,2)|(2,1,0)"},
    {"permute", "self=:|:nk dims=()|(1,0)|(-1,-2)"},
    {"movedim.int moveaxis.int", "self=:nkm|:nk|:abcd|: source=0|1|-1|-2 destination=0|1|-1|2|-2"},
    {"movedim.intlist moveaxis.intlist", "self=:nkm|:abcd source=(0,1)|(-1,0)|(2) destination=(1,0)|(0,2)|(-1,0)|(0)"},
    {"rot90", "self=:nk|:nkm k=0|1|2|3|-1|5 dims=(0,1)|(1,0)|(-1,0)|(0,-1)"},
    {"unsqueeze unsqueeze_copy", "self=:nk|:n|:|:nkm dim=0|1|-1|-2|2|3"},
    {"squeeze squeeze_copy", "self=:23|:nk|:1k|:n1|:11|:"},
    {"squeeze.dim squeeze_copy.dim", "self=:nk|:1k|:n1|:11|: dim=0|1|-1|-2"},
    {"squeeze.dims squeeze_copy.dims", "self=:nkm|:1k1|:n11|:111 dim=(0)|(0,2)|(1,-1)|()"},
    {"flatten.using_ints", "self=:nkm|:nk|:n|:|:abcd start_dim=0|1|2|-2|-1 end_dim=-1|1|2|-2"},
    {"unflatten.int", "self=:(nk,m) dim=0|-2 sizes=(n,k)|(-1,k)|(n,-1)|(1,-1)|(n,1,k)"},
    {"select.int select_copy.int unbind.int unbind_copy.int", "self=:nk|:nkm|:n dim=0|1|-1 index=0|-1|1"},
    {"slice.Tensor slice_copy.Tensor",
     "self=:Nk|:N dim=0|0|1|-1 start=~|0|1|2|-1|-3|7|-20|20 end=~|9223372036854775807|0|1|3|-1|-2|8|-20|20 "
     "step=1|1|2|3"},
    {"narrow narrow_copy", "self=:Nk|:N dim=0|-1 start=0|1|-1|-2 length=0|1|2|n"},
    {"narrow.Tensor", "self=:Nk|:N dim=0|-1 start=:!i length=0|1|2|n"},
    {"diagonal diagonal_copy", "self=:nk|:nkm|:nn offset=0|1|-1|3|-4 dim1=0|1|-1 dim2=0|1|-2"},
    {"linalg_diagonal", "A=:nk|:nkm|:nn offset=0|1|-1|3|-4 dim1=0|1|-1 dim2=0|1|-2"},
    {"diag_embed", "self=:n|:nk|:nkm offset=0|1|-2 dim1=0|1|-2|-1 dim2=1|0|-1|2"},
    {"diag", "self=:n|:nk diagonal=0|1|-1|3|-4"},
    {"unfold unfold_copy", "self=:N|:NM dimension=0|1|-1 size=1|2|3|0 step=1|2|5"},
    {"diff", "self=:n|:nk n=1|2|0|6 dim=-1|0 prepend=~|:nk|:n1|:m append=~|:nk|:nm|:1"},
    {"topk", "self=:Nk|:N|: k=0|1|2|n dim=0|-1"},
    {"kthvalue", "self=:Nk|:N|: k=1|2 dim=0|-1"},
    {"multinomial", "self=:nk|:k num_samples=1|2|n replacement=T"},
    {"repeat", "self=:nk|:n|: repeats=(2,3)|(n)|(2,1,0)|(b,1,k)|()"},
    {"tile", "self=:nk|:n|: dims=(2,3)|(2)|(2,1,0)|(b,1,k)|()"},
    {"repeat_interleave.self_int", "self=:nk|:n|: repeats=0|1|3|n dim=~|0|-1|1"},
    {"cat concat concatenate",
     "tensors=[:nk,:mk]|[:nk,:nm]|[:nk]|[:n,:m,:k]|[:nk,:0,:nm]|[:0,:nkm]|[:0,:0] dim=0|1|-1|-2"},
    {"hstack", "tensors=[:nk,:nm]|[:n,:m]|[:nak,:nbk]|[:,:]|[:0,:nk]"},
    {"row_stack vstack", "tensors=[:nk,:mk]|[:n,:n]|[:nk,:k]|[:nak,:mak]|[:,:]|[:nak,:0]"},
    {"stack", "tensors=[:nk,:nk]|[:n,:n,:n]|[:,:]|[:nk] dim=0|1|-1|-2|2"},
    {"split.Tensor split_copy.Tensor unsafe_split.Tensor", "self=:Nk|:N|:kN split_size=1|2|3|7|n|0 dim=0|-1|1"},
    {"chunk unsafe_chunk", "self=:Nk|:N|:kN chunks=1|2|3|7 dim=0|-1|1"},
    {"split.sizes", "self=:(nm,k) split_size=(nm)|(nm,0)|(0,nm) dim=0|-2"},
    {"split_with_sizes split_with_sizes_copy unsafe_split_with_sizes",
     "self=:(4n,k) split_sizes=(n,3n)|(4n)|(n,n,2n) dim=0|-2"},
    {"tensor_split.sections", "self=:Nk|:N|:kN sections=1|2|3|7|20 dim=0|-1|1"},
    {"tensor_split.indices", "self=:Nk|:N|:kN indices=(1)|(1,3)|(2,-1)|(5,2)|()|(-30,30)|(n,m) dim=0|-1|1"},
    {"broadcast_tensors", "tensors=[:nk,:k]|[:n1,:1k]|[:,:n]|[:nk,:nk,:n1]"},
    {"meshgrid", "tensors=[:n,:k]|[:n]|[:n,:,:k]"},
    {"meshgrid.indexing", "tensors=[:n,:k]|[:n]|[:n,:,:k] indexing='ij'|'xy'"},
    {"index.Tensor _unsafe_index.Tensor",
     "self=:nkm|:nkmb "
     "indices=[:a!i]|[~,:ab!i]|[:a!i,:a!i]|[:a!i,~,:a!i]|[:ab!i,:1b!i,:!i]|[~,:b!i,:1!i]|[~,:a!i,~,:b!i]"},
    {"index.Tensor _unsafe_index.Tensor", "self=:nk indices=[:nk!b]|[:n!b]|[:!i]|[:!i,:!i]|[:b!i,:ab!i]"},
    {"index_select", "self=:nk|:n|:nkm|: dim=0|-1|1 index=:a!i|:!i"},
    {"gather", "self=:nkm|:nk|: dim=0|1|-1 index=:nkm!i|:1km!i|:n1!i|:nk!i|:!i|:n11!i"},
    {"take", "self=:nk|:n|: index=:a!i|:ab!i|:!i"},
    {"take_along_dim", "self=:nk|:1k|:n1 indices=:nk!i|:n1!i|:ak!i|:na!i dim=~|0|1|-1"},
    {"index_add index_add_ index_copy index_copy_", "self=:nk dim=0|1 index=:a!i|:!i source=:ak|:na"},
    {"index_fill.int_Scalar index_fill.int_Tensor index_fill_.int_Scalar index_fill_.int_Tensor",
     "self=:nk|: dim=0|-1 index=:a!i|:!i value=:|1"},
    {"index_put index_put_ _index_put_impl_", "self=:nk indices=[:a!i]|[:a!i,:a!i]|[~,:a!i]|[:n!b] values=:|:a|:ak"},
    {"index_reduce_", "self=:nk dim=0|1 index=:a!i|:!i source=:ak|:na reduce='amax'|'mean'"},
    {"masked_scatter", "self=:nk|:n1|:k mask=:nk!b|:k!b|:bnk!b source=:88"},
    {"masked_scatter_", "self=:nk mask=:nk!b|:k!b source=:88"},
    {"masked_fill.Scalar masked_fill_.Scalar", "self=:nk|:n1|:k mask=:nk!b|:k!b|:bnk!b"},
    {"masked_fill.Tensor masked_fill_.Tensor", "self=:nk|:n1|:k mask=:nk!b|:k!b|:bnk!b value=:"},
    {"where.self where.Scalar where.ScalarOther where.ScalarSelf",
     "condition=:nk!b|:n1!b|:!b self=:nk|:k|:|:bnk other=:nk|:1k|:"},
    {"where.Scalar", "condition=:nk!b|:!b self=1 other=2"},
    {"where.ScalarOther", "condition=:nk!b|:k!b self=:nk|:n1 other=2"},
    {"where.ScalarSelf", "condition=:nk!b|:k!b self=2 other=:nk|:n1"},
    {"scatter.src scatter_.src scatter_add scatter_add_", "self=:nk|: dim=0|-1 index=:nk!i|:n1!i|:!i src=:nk|:n1|:"},
    {"scatter.reduce scatter_.reduce",
     "self=:nk|: dim=0|-1 index=:nk!i|:n1!i|:!i src=:nk|:n1|: reduce='add'|'multiply'"},
    {"scatter_reduce.two scatter_reduce_.two",
     "self=:nk|: dim=0|-1 index=:nk!i|:n1!i|:!i src=:nk|:n1|: reduce='sum'|'amax' include_self=T"},
    {"scatter.value scatter_.value", "self=:nk|: dim=0|-1 index=:nk!i|:n1!i|:!i value=1"},
    {"scatter_.value_reduce", "self=:nk|: dim=0|-1 index=:nk!i|:n1!i|:!i value=2 reduce='add'|'multiply'"},
    {"_amp_update_scale_", "self=:(1) growth_tracker=:(1)!w found_inf=:(1)"},
    {"select_scatter", "self=:nk src=:k|:n dim=0|1 index=0|-1"},
    {"slice_scatter", "self=:nk src=:nk|:n1|:1k dim=0|1 start=~|0|1 end=~|1|9 step=1"},
    {"diagonal_scatter", "self=:nn src=:n offset=0 dim1=0 dim2=1"},
    {"one_hot", "self=:n!i|:nk!i|:!i num_classes=1|3|-1|n"},
    {"bucketize.Tensor", "self=:nk|:|:n boundaries=:m out_int32=F right=F"},
    {"searchsorted.Tensor", "sorted_sequence=:m|:nm self=:nk|:|:n"},
    {"isin.Tensor_Tensor", "elements=:nk|:|:n test_elements=:m|:mk"},
    {"isin.Tensor_Scalar", "self=:nk|: elements=:nk|:n test_element=1"},
    {"view.dtype", "self=:nk|:nk!i|:n(8k)|:(n,8k)!b|:|:n dtype=6|7|4|0|3|11"},
    {"view_as_real", "self=:nk!c|:!c"},
    {"view_as_complex", "self=:nk2|:2"},
    {"arange", "end=0|1|7|n dtype=~|6|4"},
    {"arange.start", "start=0|1|-3|n end=0|1|7|9 dtype=~|6|4"},
    {"arange.start_step", "start=0|1|-3|9 end=0|1|7|-8|m step=1|2|-1|-3|4 dtype=~|6|4"},
    {"eye", "n=n"},
    {"eye.m", "n=n m=k"},
    {"randperm randperm.generator", "n=n"},
    {"linspace logspace", "start=0|1 end=1|5 steps=0|1|7|n"},
    {"hamming_window hann_window hann_window.periodic", "window_length=0|1|7|n periodic=T|F"},
    {"trapezoid.dx", "y=:nk|:n dim=-1|0"},
    {"linalg_matrix_norm", "self=:nk|:bnk ord=1|2 dim=(-2,-1)|(0,1) keepdim=T|F"},
    {"linalg_norm", "self=:nk|:n|:bnk ord=~|1 dim=~|(0)|(0,1)|(-1) keepdim=T|F"},
    {"linalg_vector_norm", "self=:nk|:n|:bnk|: ord=2|1 dim=~|(0)|(0,1)|(-1)|() keepdim=T|F"},
    {"cross linalg_cross", "self=:n3|:3|:13 other=:n3|:3 dim=-1"},

    {"conv1d",
     "input=:ncL|:cL weight=:oc1|:oc3|:oc2|:o12 bias=~|:o stride=(1)|(2)|(3) padding=(0)|(1)|(2) "
     "dilation=(1)|(2) groups=1|1|c"},
    {"conv1d.padding",
     "input=:ncL|:cL weight=:oc1|:oc3|:oc4 bias=~ stride=(1)|(2) padding='same'|'valid' dilation=(1)|(2)"},
    {"conv2d",
     "input=:ncHW|:cHW weight=:oc11|:oc33|:oc21|:o133 bias=~|:o stride=(1)|(2)|(2,1)|(3,2) "
     "padding=(0)|(1)|(1,2) dilation=(1)|(2)|(1,2) groups=1|1|c"},
    {"conv2d.padding",
     "input=:ncHW|:cHW weight=:oc11|:oc33|:oc23 bias=~ stride=(1)|(2) padding='same'|'valid' dilation=(1)|(2,1)"},
    {"conv3d",
     "input=:ncHWL|:cHWL weight=:oc111|:oc333|:oc213 bias=~|:o stride=(1)|(2)|(2,1,3) padding=(0)|(1)|(1,2,0) "
     "dilation=(1)|(1,2,1) groups=1"},
    {"conv3d.padding",
     "input=:ncHWL weight=:oc111|:oc333|:oc232 bias=~ stride=(1)|(2) padding='same'|'valid' dilation=(1)"},
    {"conv_transpose1d",
     "input=:ncL|:cL weight=:co1|:co3|:co2 bias=~ stride=(1)|(2)|(3) padding=(0)|(1) "
     "output_padding=(0)|(1) groups=1|2 dilation=(1)|(2)"},
    {"conv_transpose2d.input",
     "input=:ncHW|:cHW weight=:co11|:co33|:co23 bias=~ stride=(1)|(2)|(3,2) padding=(0)|(1)|(0,1) "
     "output_padding=(0)|(1)|(0,1) groups=1|2 dilation=(1)|(2,1)"},
    {"conv_transpose3d.input",
     "input=:ncHWL|:cHWL weight=:co111|:co323 bias=~ stride=(1)|(2)|(3,2,1) padding=(0)|(1)|(0,1,0) "
     "output_padding=(0)|(1,0,0) groups=1|2 dilation=(1)"},
    {"convolution _convolution",
     "input=:ncHW weight=:oc11|:oc33|:oc23 bias=~ stride=(1,1)|(2,1) padding=(0,0)|(1,0) dilation=(1,1) "
     "transposed=F output_padding=(0,0) groups=1"},
    {"convolution _convolution",
     "input=:ncHW weight=:co11|:co33|:co23 bias=~ stride=(1,1)|(2,1) padding=(0,0)|(1,0) dilation=(1,1) "
     "transposed=T output_padding=(0,0)|(1,0) groups=1|2"},
    {"avg_pool1d max_pool1d max_pool1d_with_indices",
     "self=:ncL|:cL kernel_size=(1)|(2)|(3) stride=()|(1)|(2)|(3)|(5) padding=(0)|(1) dilation=(1)|(2)"},
    {"avg_pool2d max_pool2d max_pool2d_with_indices",
     "self=:ncHW|:cHW kernel_size=(1)|(2)|(3)|(3,2) stride=()|(1)|(2)|(3,1)|(5) padding=(0)|(1)|(1,0) "
     "dilation=(1)|(2)|(1,2)"},
    {"avg_pool3d max_pool3d max_pool3d_with_indices",
     "self=:ncHWL|:cHWL kernel_size=(1)|(2)|(3)|(3,2,1) stride=()|(1)|(2)|(3,1,2) padding=(0)|(1)|(1,0,0) "
     "dilation=(1)|(1,2,1)"},
    {"adaptive_avg_pool1d adaptive_max_pool1d", "self=:ncL|:cL output_size=(1)|(3)|(n)"},
    {"_adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d", "self=:ncHW|:cHW output_size=(1,1)|(3,2)|(n,k)"},
    {"adaptive_avg_pool3d adaptive_max_pool3d", "self=:ncHWL|:cHWL output_size=(1,1,1)|(3,2,1)|(n,k,1)"},
    {"im2col", "self=:ncHW|:cHW kernel_size=(1,1)|(2,3) dilation=(1,1)|(1,2) padding=(0,0)|(1,0) stride=(1,1)|(2,3)"},
    {"col2im",
     "self=:n(4)|:(n,4c,6)|:(4c,6) output_size=(3,4)|(4,3) kernel_size=(2,2) dilation=(1,1) padding=(0,0) "
     "stride=(1,1)"},
    {"upsample_linear1d upsample_nearest1d", "self=:ncL output_size=(n)|(5)"},
    {"upsample_bicubic2d upsample_bilinear2d upsample_nearest2d _upsample_nearest_exact2d",
     "self=:ncHW output_size=(n,k)|(5,7)"},
    {"upsample_nearest3d upsample_trilinear3d", "self=:ncHWL output_size=(n,k,2)|(5,7,3)"},
    {"upsample_linear1d.vec upsample_nearest1d.vec", "input=:ncL output_size=(n)|(5) scale_factors=~"},
    {"upsample_linear1d.vec upsample_nearest1d.vec",
     "input=:ncL output_size=~ scale_factors={2.0}|{1.0}|{0.5}|{0.375}|{1.7}"},
    {"upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_nearest2d.vec _upsample_nearest_exact2d.vec "
     "_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec",
     "input=:ncHW output_size=(n,k)|(5,7) scale_factors=~"},
    {"upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_nearest2d.vec _upsample_nearest_exact2d.vec "
     "_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec",
     "input=:ncHW output_size=~ scale_factors={2.0,2.0}|{3.0,1.0}|{0.5,1.25}"},
    {"upsample_nearest3d.vec upsample_trilinear3d.vec", "input=:ncHWL output_size=(n,k,2)|(5,7,3) scale_factors=~"},
    {"upsample_nearest3d.vec upsample_trilinear3d.vec", "input=:ncHWL output_size=~ scale_factors={2.0,2.0,1.0}"},
    {"pixel_shuffle", "self=:(n,4c,h,w)|:(4c,h,w)|:(9c,h,w) upscale_factor=2|3|1"},
    {"channel_shuffle", "self=:(n,4c,h,w)|:(2c,h,w) groups=1|2"},
    {"constant_pad_nd pad", "self=:HW|:nHW|:L pad=(1,2)|(0,0,1,1)|(-1,1)|(n,k)|(-1,-1,2,0)|()"},
    {"pad", "self=:ncHW|:cHW pad=(1,2)|(1,0,1,1)|(-1,1,0,0) mode='reflect'|'replicate'|'circular' value=~"},
    {"reflection_pad1d replication_pad1d", "self=:ncL|:cL padding=(1,2)|(0,0)|(n,1)"},
    {"reflection_pad2d replication_pad2d", "self=:ncHW|:cHW padding=(1,2,0,1)|(0,0,0,0)|(n,1,1,k)"},
    {"reflection_pad3d replication_pad3d", "self=:ncHWL|:cHWL padding=(1,2,0,1,1,1)|(0,0,0,0,0,0)"},
    {"batch_norm native_batch_norm", "input=:nc|:ncL|:ncHW weight=~|:c bias=~|:c running_mean=:c running_var=:c"},
    {"instance_norm", "input=:ncL|:ncHW weight=~|:c bias=~|:c running_mean=~ running_var=~ use_input_stats=T"},
    {"group_norm", "input=:(n,4c)|:(n,4c,h)|:(n,4c,h,w) num_groups=1|2|4 weight=~ bias=~"},
    {"native_group_norm", "input=:(n,4c,h) weight=~ bias=~ N=n C=(4c)|4c HxW=h group=1|2|4"},
    {"native_group_norm", "input=:n4h weight=~ bias=~ N=n C=4 HxW=h group=1|2|4 eps=0.1"},
    {"layer_norm native_layer_norm rms_norm",
     "input=:nk|:nmk|:k|:bnmk normalized_shape=(k)|(m,k) weight=~|:k|:mk bias=~ eps=0.1"},
    {"prelu", "self=:nc|:n|:nchw weight=:c|:1"},
    {"glu", "self=:(4n,2k)|:(2n)|:(n,2k,m)|:(n,k) dim=0|1|-1|-2"},
    {"embedding", "weight=:nk indices=:a!i|:ab!i|:!i|:abc!i"},
    {"scaled_dot_product_attention",
     "query=:blke|:1lke|:lke|:ke|:bl1e key=:blme|:lme|:me|:1lme|:bme value=:blmv|:lmv|:mv|:1lmv attn_mask=~|:km|:blkm "
     "dropout_p=0.0 "
     "is_causal=F|T enable_gqa=F"},
    // With grouped heads of which there are none, ATen divides by zero and the process ends.
    {"scaled_dot_product_attention",
     "query=:b6ke|:6ke|:16ke key=:b3me|:3me|:b1me value=:b3mv|:3mv|:13mv|:b1mv attn_mask=~ dropout_p=0.0 is_causal=F "
     "enable_gqa=T"},
    // Batches that differ would corrupt memory (see the rule), and without hidden units oneDNN divides by zero.
    {"lstm.input",
     "input=:tbi hx=[:1b3,:1b3] params=[:(12,i),:(12,3)] has_biases=F num_layers=1 dropout=0.0 bidirectional=F "
     "batch_first=F train=F"},
    {"lstm.input",
     "input=:bti hx=[:2b3,:2b3] params=[:(12,i),:(12,3),:(12,i),:(12,3)] has_biases=F num_layers=1 dropout=0.0 "
     "bidirectional=T batch_first=T train=F"},
    {"lstm.input",
     "input=:tbi hx=[:2b3,:2b3] params=[:(12,i),:(12,3),:(12,3),:(12,3)] has_biases=F num_layers=2 dropout=0.0 "
     "bidirectional=F batch_first=F train=F"},
    {"lstm.input",
     "input=:tbi hx=[:1b2,:1b3] params=[:(12,i),:(12,2),:23] has_biases=F num_layers=1 dropout=0.0 bidirectional=F "
     "batch_first=F train=F"},
    {"gru.input",
     "input=:tbi|:tci hx=:1bh params=[:(3h,i),:(3h,h)] has_biases=F num_layers=1 dropout=0.0 "
     "bidirectional=F batch_first=F train=F"},
    {"gru.input",
     "input=:bti hx=:2bh params=[:(3h,i),:(3h,h),:(3h,i),:(3h,h)] has_biases=F num_layers=1 dropout=0.0 "
     "bidirectional=T batch_first=T train=F"},
    {"rnn_tanh.input rnn_relu.input",
     "input=:tbi|:tci hx=:1bh params=[:hi,:hh] has_biases=F num_layers=1 dropout=0.0 "
     "bidirectional=F batch_first=F train=F"},
    {"rnn_tanh.input rnn_relu.input",
     "input=:bti hx=:2bh params=[:hi,:hh,:hi,:hh] has_biases=F num_layers=1 dropout=0.0 "
     "bidirectional=T batch_first=T train=F"},
    {"lstm_cell", "input=:bi|:1i hx=[:bh,:bh]|[:bh,:ch] w_ih=:(4h,i) w_hh=:(4h,h) b_ih=~|:(4h) b_hh=~|:(4h)"},
    {"gru_cell", "input=:bi|:1i hx=:bh w_ih=:(3h,i) w_hh=:(3h,h) b_ih=~ b_hh=~"},
    {"rnn_tanh_cell rnn_relu_cell", "input=:bi|:1i hx=:bh w_ih=:hi w_hh=:hh b_ih=~ b_hh=~"},
    {"grid_sampler", "input=:nchw|:nchwd grid=:nab2|:nabe3 interpolation_mode=0 padding_mode=0 align_corners=F"},
    {"affine_grid_generator", "theta=:n23|:n34 size=(n,c,h,w)|(n,c,h,w,d) align_corners=F"},
    {"fft_fft fft_ifft fft_rfft fft_ihfft fft_irfft fft_hfft", "self=:nk|:n|:n!c|:nk!c n=~|1|4|7|n dim=0|-1 norm=~"},
};

constexpr c10::ScalarType kDtypes[] = {c10::kFloat, c10::kLong, c10::kBool, c10::kComplexFloat, c10::kDouble};

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  // The arguments of one call, or none if what was drawn does not fit the schema.
  std::vector<IValue> Arguments(const c10::FunctionSchema& schema, const char* pattern) {
    sizes_.clear();
    base_.resize(Below(5));
    for (int64_t& n : base_) n = DrawSize(6);
    in_place_ = schema.name().back() == '_' || schema.name().substr(0, 8) == "aten::__";
    std::map<std::string, IValue> named;
    for (const auto item : absl::StrSplit(pattern, ' ', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> part = absl::StrSplit(item, absl::MaxSplits('=', 1));
      named[part.first] = OneOf(part.second);
    }
    std::vector<IValue> stack;
    for (const c10::Argument& a : schema.arguments()) {
      const auto it = named.find(a.name());
      stack.push_back(it != named.end() ? it->second : Pick(a, *a.type(), stack.empty()));
    }
    return stack;
  }

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % n); }
  void ChangeDtype() { dtype_ = kDtypes[Below(std::size(kDtypes))]; }

 private:
  int64_t DrawSize(int64_t most) { return Below(6) == 0 ? 1 : Below(most); }

  int64_t SizeOfLetter(char letter) {
    const auto it = sizes_.find(letter);
    if (it != sizes_.end()) return it->second;
    return sizes_[letter] = DrawSize(absl::ascii_isupper(letter) ? 14 : 5);
  }

  // "4h": 4 times the size `h`; "-1".
  int64_t Entry(absl::string_view text) {
    int64_t product = 1;
    if (absl::ConsumePrefix(&text, "-")) product = -1;
    while (!text.empty()) {
      size_t digits = 0;
      while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
      product *= digits > 0 ? std::stoll(std::string(text.substr(0, digits))) : SizeOfLetter(text[0]);
      text.remove_prefix(std::max<size_t>(digits, 1));
    }
    return product;
  }

  std::vector<int64_t> Entries(absl::string_view text) {
    std::vector<int64_t> entries;
    for (const auto e : absl::StrSplit(text, ',', absl::SkipEmpty())) entries.push_back(Entry(e));
    return entries;
  }

  at::Tensor Make(const std::vector<int64_t>& sizes, c10::ScalarType dtype) {
    const at::Tensor ones = at::ones(sizes, at::TensorOptions().dtype(dtype));
    return dtype == c10::kLong && index_ ? ones.zero_() : ones;
  }

  at::Tensor TensorOf(absl::string_view text) {
    std::pair<absl::string_view, absl::string_view> part = absl::StrSplit(text, absl::MaxSplits('!', 1));
    std::vector<int64_t> sizes;
    absl::string_view shape = part.first;
    if (absl::ConsumePrefix(&shape, "(")) {
      sizes = Entries(absl::StripSuffix(shape, ")"));
    } else {
      for (const char c : shape) sizes.push_back(Entry(absl::string_view(&c, 1)));
    }
    index_ = part.second == "i";
    const c10::ScalarType dtype = part.second == "i"   ? c10::kLong
                                  : part.second == "w" ? c10::kInt
                                  : part.second == "b" ? c10::kBool
                                  : part.second == "c" ? c10::kComplexFloat
                                                       : dtype_;
    return Make(sizes, dtype);
  }

  // At commas outside of parentheses.
  static std::vector<std::string> Items(absl::string_view text) {
    std::vector<std::string> items(1);
    int depth = 0;
    for (const char c : text) {
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (c == ',' && depth == 0) {
        items.emplace_back();
      } else {
        items.back() += c;
      }
    }
    return items;
  }

  IValue OneOf(absl::string_view alternatives) {
    const std::vector<std::string> all = absl::StrSplit(alternatives, '|');
    absl::string_view text = all[Below(static_cast<int64_t>(all.size()))];
    if (text == "~") return IValue();
    if (text == "T" || text == "F") return text == "T";
    if (absl::ConsumePrefix(&text, ":")) return TensorOf(text);
    if (absl::ConsumePrefix(&text, "'")) return std::string(absl::StripSuffix(text, "'"));
    if (absl::ConsumePrefix(&text, "(")) return Entries(absl::StripSuffix(text, ")"));
    if (absl::ConsumePrefix(&text, "{")) {
      c10::List<double> doubles;
      for (const auto d : absl::StrSplit(absl::StripSuffix(text, "}"), ','))
        doubles.push_back(std::stod(std::string(d)));
      return doubles;
    }
    if (absl::ConsumePrefix(&text, "[")) {
      const std::vector<std::string> items = Items(absl::StripSuffix(text, "]"));
      if (std::find_if(items.begin(), items.end(),
                       [](const auto& i) { return i == "~" || absl::StrContains(i, '!'); }) == items.end()) {
        c10::List<at::Tensor> tensors;
        for (const std::string& i : items) tensors.push_back(TensorOf(absl::StripPrefix(i, ":")));
        return tensors;
      }
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::string& i : items) {
        tensors.push_back(i == "~" ? std::nullopt : std::make_optional(TensorOf(absl::StripPrefix(i, ":"))));
      }
      return tensors;
    }
    if (absl::StrContains(text, '.')) return std::stod(std::string(text));
    return Entry(text);
  }

  // A shape that is broadcast with those before it.
  std::vector<int64_t> Partner() {
    std::vector<int64_t> sizes(base_.begin() + Below(static_cast<int64_t>(base_.size()) + 1), base_.end());
    if (Below(2) == 0) sizes = base_;
    for (int64_t& n : sizes) {
      if (Below(4) == 0) n = 1;
    }
    return sizes;
  }

  IValue Pick(const c10::Argument& a, const c10::Type& type, bool first) {
    const auto rank = static_cast<int64_t>(base_.size());
    const bool is_dim = absl::StartsWith(a.name(), "dim") || absl::StartsWith(a.name(), "axis");
    const auto draw_dim = [&] { return Below(std::max<int64_t>(2 * rank, 2)) - std::max<int64_t>(rank, 1); };
    switch (type.kind()) {
      case TypeKind::TensorType:
        index_ = false;
        return Make(first && Below(in_place_ ? 4 : 2) > 0 ? base_ : Partner(), dtype_);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        if (is_dim) return draw_dim();
        if (a.name() == "dtype" || a.name() == "out_dtype") return static_cast<int64_t>(c10::kFloat);
        return a.default_value() ? *a.default_value() : IValue(Below(3) + 1);
      case TypeKind::NumberType:
        return a.default_value() ? *a.default_value() : Below(2) == 0 ? IValue(2) : IValue(0.5);
      case TypeKind::FloatType:
        return a.default_value() ? *a.default_value() : IValue(0.5);
      case TypeKind::BoolType:
        return Below(2) == 0;
      case TypeKind::ListType:
        if (is_dim || a.name() == "shifts") {
          std::vector<int64_t> dims;
          const int64_t count = Below(std::max<int64_t>(rank, 1) + 1);
          for (int64_t i = 0; i < count; ++i) dims.push_back(draw_dim());
          return dims;
        }
        return a.default_value().value_or(IValue());
      case TypeKind::DeviceObjType:
        return c10::Device(c10::kCPU);
      case TypeKind::OptionalType:
        if (Below(2) == 0 && (is_dim || a.name() == "min" || a.name() == "max")) {
          return Pick(c10::Argument(a.name()), *type.castRaw<c10::OptionalType>()->getElementType(), false);
        }
        return a.default_value().value_or(IValue());
      default:
        return a.default_value().value_or(IValue());
    }
  }

  std::mt19937_64 random_;
  c10::ScalarType dtype_ = c10::kFloat;
  std::map<char, int64_t> sizes_;
  std::vector<int64_t> base_;
  bool in_place_ = false;
  bool index_ = false;
};

// The graph of one call, and what its values were.
class Recorded {
 public:
  // With numbers that are values, if `maker` is given, some of them computed from sizes.
  Recorded(const c10::OperatorHandle& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results,
           const std::vector<std::vector<int64_t>>& sizes_before, Maker* maker)
      : sizes_before_(sizes_before), maker_(maker) {
    Node node;
    node.op = op;
    node.state = StateId(0);
    for (const IValue& v : arguments) node.args.push_back(ArgOf(v));
    std::vector<std::pair<ValueId, c10::List<at::Tensor>>> lists;
    for (const IValue& v : results) {
      node.outputs.push_back(
          graph.NewValue(Name(), v.isTensor() ? TypeOf(v.toTensor()) : Type::Scalar(Type::Kind::kTensorList)));
      if (v.isTensor()) outputs.emplace_back(node.outputs.back(), v.toTensor());
      if (v.isTensorList()) lists.emplace_back(node.outputs.back(), v.toTensorList());
    }
    graph.AddNode(std::move(node));
    for (const auto& [list, tensors] : lists) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        Node item;
        item.builtin_op = BuiltinOp::kListItem;
        item.state = StateId(0);
        item.args = {Arg::Of(list), Arg::Const(static_cast<int64_t>(i))};
        item.outputs = {graph.NewValue(Name(), TypeOf(tensors[i]))};
        outputs.emplace_back(item.outputs[0], tensors[i]);
        graph.AddNode(std::move(item));
      }
    }
  }

  std::optional<int64_t> ValueOf(const SizeExpr& e) const {
    switch (e.kind) {
      case SizeExpr::Kind::kConst:
        return e.number;
      case SizeExpr::Kind::kSizeOf: {
        const auto it = sizes_.find(e.value.raw());
        if (it == sizes_.end() || e.number < 0 || e.number >= static_cast<int64_t>(it->second.size()))
          return std::nullopt;
        return it->second[e.number];
      }
      case SizeExpr::Kind::kValue: {
        const auto it = numbers_.find(e.value.raw());
        return it == numbers_.end() ? std::nullopt : std::make_optional(it->second);
      }
      case SizeExpr::Kind::kOp: {
        const auto a = ValueOf(e.operands->first);
        const auto b = ValueOf(e.operands->second);
        Number result;
        if (!a || !b || !Compute(e.op, Number::Int(*a), Number::Int(*b), &result)) return std::nullopt;
        return result.i;
      }
    }
    return std::nullopt;
  }

  Graph graph;
  std::vector<std::pair<ValueId, at::Tensor>> outputs;

 private:
  std::string Name() { return absl::StrCat("v", graph.values.size()); }

  // size_rules/Z2: sizes in types say nothing, so that a rule that reads them fails.
  static Type TypeOf(const at::Tensor& tensor) {
    Type type = Type::Of(tensor);
    std::fill(type.sizes.begin(), type.sizes.end(), -1);
    return type;
  }

  Arg Input(const at::Tensor& tensor) {
    const ValueId id = graph.AddInput(Name(), TypeOf(tensor));
    sizes_[id.raw()] = sizes_before_.at(next_tensor_++);
    return Arg::Of(id);
  }

  Arg NumberArg(int64_t n) {
    const int64_t form = maker_ == nullptr ? 0 : maker_->Below(3);
    if (form == 0) return Arg::Const(n);
    if (form == 1 || n < 0) {
      const ValueId id = graph.AddInput(Name(), Type::Scalar(Type::Kind::kInt));
      numbers_[id.raw()] = n;
      return Arg::Of(id);
    }
    Type type;
    type.kind = Type::Kind::kTensor;
    type.sizes = {-1};
    Node size;
    size.builtin_op = BuiltinOp::kSize;
    size.state = StateId(0);
    size.args = {Arg::Of(graph.AddInput(Name(), type)), Arg::Const(0)};
    const ValueId id = graph.NewValue(Name(), Type::Scalar(Type::Kind::kInt));
    size.outputs = {id};
    graph.AddNode(std::move(size));
    numbers_[id.raw()] = n;
    return Arg::Of(id);
  }

  Arg ArgOf(const IValue& v) {
    if (v.isTensor()) return v.toTensor().defined() ? Input(v.toTensor()) : Arg::Const(v);
    if (v.isInt()) return NumberArg(v.toInt());
    if (v.isIntList() && maker_ == nullptr) return Arg::Const(v);
    if (v.isIntList() || v.isTensorList() || v.isOptionalTensorList()) {
      std::vector<Arg> items;
      for (const IValue& item : v.toListRef()) items.push_back(ArgOf(item));
      return Arg::List(std::move(items));
    }
    return Arg::Const(v);
  }

  const std::vector<std::vector<int64_t>>& sizes_before_;
  size_t next_tensor_ = 0;
  Maker* maker_;
  std::map<uint32_t, std::vector<int64_t>> sizes_;
  std::map<uint32_t, int64_t> numbers_;
};

std::string Text(const std::vector<IValue>& arguments) {
  std::vector<std::string> parts;
  for (const IValue& v : arguments) {
    if (v.isTensor()) {
      parts.push_back(v.toTensor().defined() ? ToString(Type::Of(v.toTensor())) : "none");
    } else if (v.isTensorList() || v.isOptionalTensorList()) {
      parts.push_back(absl::StrCat("[", Text(v.toListRef().vec()), "]"));
    } else {
      std::ostringstream out;
      out << v;
      parts.push_back(out.str());
    }
  }
  return absl::StrJoin(parts, ", ");
}

std::string Text(const SizeExpr& e) {
  switch (e.kind) {
    case SizeExpr::Kind::kConst:
      return absl::StrCat(e.number);
    case SizeExpr::Kind::kSizeOf:
      return absl::StrCat("size(", e.value.raw(), ",", e.number, ")");
    case SizeExpr::Kind::kValue:
      return absl::StrCat("value(", e.value.raw(), ")");
    case SizeExpr::Kind::kOp:
      return absl::StrCat(RowOf(e.op).name, "(", Text(e.operands->first), ", ", Text(e.operands->second), ")");
  }
  return "?";
}

std::vector<std::vector<int64_t>> SizesOf(const std::vector<IValue>& arguments) {
  std::vector<std::vector<int64_t>> sizes;
  for (const IValue& v : arguments) {
    if (v.isTensor() && v.toTensor().defined()) sizes.push_back(v.toTensor().sizes().vec());
    if (v.isTensorList() || v.isOptionalTensorList()) {
      for (auto& s : SizesOf(v.toListRef().vec())) sizes.push_back(std::move(s));
    }
  }
  return sizes;
}

struct Tally {
  int calls = 0;
  int asked = 0;
  int answered = 0;
  bool wrong = false;
};

void Compare(const Recorded& recorded, const std::string& what, Tally* tally) {
  for (const auto& [id, tensor] : recorded.outputs) {
    const auto exprs = SizesOf(recorded.graph, id);
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      ++tally->asked;
      const auto expr = static_cast<size_t>(d) < exprs.size() ? exprs[d] : std::nullopt;
      if (!expr) continue;
      ++tally->answered;
      const auto value = recorded.ValueOf(*expr);
      if (value == tensor.size(d)) continue;
      tally->wrong = true;
      ADD_FAILURE() << what << ": dimension " << d << " is " << tensor.size(d) << ", not "
                    << (value ? absl::StrCat(*value) : "nothing") << " = " << Text(*expr);
    }
  }
}

int ShapesAnOp() {
  const char* count = std::getenv("FRAMETAP_SIZE_SHAPES");
  return count == nullptr ? 20 : std::atoi(count);
}

std::vector<const char*> PatternsOf(const std::string& op) {
  std::vector<const char*> patterns;
  for (const Pattern& p : kPatterns) {
    for (const auto name : absl::StrSplit(p.ops, ' ', absl::SkipEmpty())) {
      if (absl::StrCat("aten::", name) == op) patterns.push_back(p.args);
    }
  }
  if (patterns.empty()) patterns.push_back("");
  return patterns;
}

c10::OperatorHandle OpOf(const std::string& name) {
  const std::pair<std::string, std::string> part = absl::StrSplit(name, absl::MaxSplits('.', 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(part.first.c_str(), part.second.c_str());
}

// Calls that fail are passed over. Ops differ in the dtypes they take: another one is tried after a failure.
Tally Check(const std::string& name, int shapes) {
  Tally tally;
  const c10::OperatorHandle op = OpOf(name);
  const std::vector<const char*> patterns = PatternsOf(name);
  Maker maker(std::hash<std::string>()(name));
  for (int attempt = 0; attempt < 15 * shapes + 60 && tally.calls < shapes; ++attempt) {
    const std::vector<IValue> arguments = maker.Arguments(op.schema(), patterns[attempt % patterns.size()]);
    const auto sizes_before = SizesOf(arguments);
    const std::string what = absl::StrCat(name, "(", Text(arguments), ")");
    torch::jit::Stack stack = arguments;
    try {
      op.callBoxed(stack);
    } catch (const std::exception&) {
      if (maker.Below(2) == 0) maker.ChangeDtype();
      continue;
    }
    ++tally.calls;
    Compare(Recorded(op, arguments, stack, sizes_before, nullptr), what, &tally);
    Tally of_values;  // these may have no answer
    Compare(Recorded(op, arguments, stack, sizes_before, &maker), what, &of_values);
    if (tally.wrong || of_values.wrong) break;
  }
  return tally;
}

// Drawn arguments are often ones that ATen warns of.
class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

TEST(SizeRulesTest, Z1_EveryAnswerIsTheSizeOfTheResult) {
  const at::NoGradGuard no_grad;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  const int shapes = ShapesAnOp();
  const std::vector<std::string> ops = OpsWithSizeRules();
  EXPECT_GE(ops.size(), 250u);
  for (const std::string& name : ops) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(HasSizeRule(OpOf(name)));
    if (!OpOf(name).hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const Tally tally = Check(name, shapes);
    EXPECT_GT(tally.calls, 0) << "no arguments found for it";
    EXPECT_TRUE(tally.asked == 0 || tally.answered > 0) << "never answers";
    if (std::getenv("FRAMETAP_SIZE_TALLY") != nullptr) {
      std::printf("%-50s %4d calls %5d of %5d\n", name.c_str(), tally.calls, tally.answered, tally.asked);
    }
  }
}

// A graph of one node with one result.
class OneNode {
 public:
  ValueId Input(int64_t rank) {
    Type type;
    type.kind = Type::Kind::kTensor;
    type.dtype = c10::kFloat;
    type.sizes.assign(rank, -1);
    return graph_.AddInput(absl::StrCat("x", graph_.values.size()), type);
  }

  ValueId SizeOfInput(ValueId tensor) {
    Node node;
    node.builtin_op = BuiltinOp::kSize;
    node.state = StateId(0);
    node.args = {Arg::Of(tensor), Arg::Const(0)};
    node.outputs = {graph_.NewValue("n", Type::Scalar(Type::Kind::kInt))};
    const ValueId number = node.outputs[0];
    graph_.AddNode(std::move(node));
    return number;
  }

  // The rule of each dimension of the result.
  std::string Sizes(const char* op, std::vector<Arg> args, int64_t rank) {
    Node node;
    node.op = OpOf(op);
    node.state = StateId(0);
    node.args = std::move(args);
    Type type;
    type.kind = Type::Kind::kTensor;
    type.sizes.assign(rank, -1);
    const ValueId result = graph_.NewValue("y", type);
    node.outputs = {result};
    graph_.AddNode(std::move(node));
    std::vector<std::string> texts;
    const auto exprs = SizesOf(graph_, result);
    for (size_t d = 0; d < static_cast<size_t>(rank); ++d) {
      texts.push_back(d < exprs.size() && exprs[d] ? Text(*exprs[d]) : "?");
    }
    return absl::StrJoin(texts, "; ");
  }

 private:
  Graph graph_;
};

TEST(SizeRulesTest, Z1_OfOneOperandOrOfEqualOnesASizeIsThatOperands) {
  OneNode g;
  const Arg x = Arg::Of(g.Input(2));
  const Arg row = Arg::Of(g.Input(1));
  EXPECT_EQ(g.Sizes("aten::mul.Tensor", {x, x}, 2), "size(0,0); size(0,1)");
  EXPECT_EQ(g.Sizes("aten::mul.Tensor", {x, Arg::Const(2)}, 2), "size(0,0); size(0,1)");
  EXPECT_EQ(g.Sizes("aten::mul.Tensor", {x, Arg::Const(at::ones({1, 3}))}, 2), "size(0,0); 3");
  EXPECT_EQ(g.Sizes("aten::mul.Tensor", {x, row}, 2), "size(0,0); int.broadcast(size(0,1), size(1,0))");
}

TEST(SizeRulesTest, Z2_ANumberThatIsASizeIsNotNegative) {
  OneNode g;
  const ValueId x = g.Input(3);
  const ValueId n = g.SizeOfInput(x);
  const Arg view = Arg::List({Arg::Of(n), Arg::Const(-1)});
  EXPECT_EQ(g.Sizes("aten::view", {Arg::Of(x), view}, 2),
            "value(1); int.floordiv(int.mul(int.mul(size(0,0), size(0,1)), size(0,2)), value(1))");
  const Arg none = Arg::Const(IValue());
  EXPECT_EQ(g.Sizes("aten::slice.Tensor", {Arg::Of(x), Arg::Const(0), none, Arg::Of(n), Arg::Const(1)}, 3),
            "int.min(value(1), size(0,0)); size(0,1); size(0,2)");
}

TEST(SizeRulesTest, Z3_InPlaceTheSizesAreThoseOfTheFirstArgument) {
  OneNode g;
  const Arg x = Arg::Of(g.Input(2));
  const Arg row = Arg::Of(g.Input(1));
  EXPECT_EQ(g.Sizes("aten::absolute_", {x}, 2), "size(0,0); size(0,1)");
  EXPECT_EQ(g.Sizes("aten::mul_.Tensor", {x, row}, 2), "size(0,0); size(0,1)");
  for (const char* name : {"aten::transpose_", "aten::resize_", "aten::addbmm_", "aten::_mkldnn_transpose_"}) {
    EXPECT_FALSE(HasSizeRule(OpOf(name))) << name;
  }
}

TEST(SizeRulesTest, Z2_ATypeOfAnotherRankHasNoAnswer) {
  OneNode g;
  const Arg x = Arg::Of(g.Input(2));
  EXPECT_EQ(g.Sizes("aten::relu", {x}, 2), "size(0,0); size(0,1)");
  EXPECT_EQ(g.Sizes("aten::relu", {x}, 3), "?; ?; ?");
}

TEST(SizeRulesTest, PatternsNameOpsWithARule) {
  for (const Pattern& p : kPatterns) {
    for (const auto name : absl::StrSplit(p.ops, ' ', absl::SkipEmpty())) {
      EXPECT_TRUE(HasSizeRule(OpOf(absl::StrCat("aten::", name)))) << name;
    }
  }
}

TEST(SizeRulesTest, AnOpHasOneRule) {
  std::vector<std::string> ops = OpsWithSizeRules();
  std::sort(ops.begin(), ops.end());
  const auto twice = std::adjacent_find(ops.begin(), ops.end());
  EXPECT_EQ(twice, ops.end()) << *twice;
}

}  // namespace
}  // namespace frametap
