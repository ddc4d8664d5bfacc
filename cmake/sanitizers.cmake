# FRAMETAP_SANITIZE: what the sanitizers watch. torch itself is not instrumented: reports come from our code only.
# The `vptr` check is off: it needs type information that torch's hidden symbols do not give.
if(FRAMETAP_SANITIZE STREQUAL "address")
  # GCC 12 does not see through absl's inlined vectors and torch's pointers once they are instrumented.
  set(flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -Wno-maybe-uninitialized)
elseif(FRAMETAP_SANITIZE STREQUAL "thread")
  set(flags -fsanitize=thread)
elseif(FRAMETAP_SANITIZE)
  message(FATAL_ERROR "FRAMETAP_SANITIZE is '${FRAMETAP_SANITIZE}': use address, thread, or leave it empty.")
endif()
if(flags)
  target_compile_options(frametap_options INTERFACE ${flags} -fno-omit-frame-pointer -g1)
  target_link_options(frametap_options INTERFACE ${flags})
endif()
