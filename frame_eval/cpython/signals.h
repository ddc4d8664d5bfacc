// Signals while code of ours is at work. Much of the C-API serves signals where one would not expect it: repr(), the
// text of an int, the making of an AttributeError. The handler is Python code of the program, and what it raises must
// reach the program, not a place of ours that clears errors.
//   G1  While a SignalsHeld is alive on the main thread, no Python handler runs there and no pending call is made; what
//       came meanwhile is served by the evaluation loop's next look.
//   G2  A SignalsServed inside of it lifts that for foreign Python code (a backend).
#pragma once

#include <utility>

namespace frametap {

namespace signals {
extern unsigned long held;               // the main thread, while it is held; under Python's lock
extern unsigned long* main_thread;       // CPython asks "is this it?" before it serves anything (written_fields.h)
void ServeSoon();                        // what came meanwhile
extern const volatile int* const came;   // a signal
extern const volatile int* const calls;  // a pending call
}  // namespace signals

bool OnMainThread();  // false while a SignalsHeld is alive

// Stands around each operation of a recording, hence inline.
class SignalsHeld {
 public:
  SignalsHeld() : SignalsHeld(OnMainThread()) {}
  explicit SignalsHeld(bool on_main_thread)  // for who has asked before
      : held_(on_main_thread && *signals::main_thread != 0) {
    if (held_) signals::held = std::exchange(*signals::main_thread, 0);
  }
  ~SignalsHeld() {
    if (!held_) return;
    *signals::main_thread = std::exchange(signals::held, 0);
    if (*signals::came != 0 || *signals::calls != 0) [[unlikely]]
      signals::ServeSoon();
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  bool held_;
};

class SignalsServed {
 public:
  SignalsServed();
  ~SignalsServed();
  SignalsServed(const SignalsServed&) = delete;
  SignalsServed& operator=(const SignalsServed&) = delete;

 private:
  bool served_;
};

}  // namespace frametap
