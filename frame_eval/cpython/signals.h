// Signals while code of ours is at work. Much of the C-API serves signals where one would not expect it: repr(), the
// text of an int, the making of an AttributeError. The handler is Python code of the program, and what it raises must
// reach the program, not a place of ours that clears errors.
//   G1  While a SignalsHeld is alive on the main thread, no Python handler runs there and no pending call is made; what
//       came meanwhile is served by the evaluation loop's next look.
//   G2  A SignalsServed inside of it lifts that for foreign Python code (a backend).
#pragma once

namespace frametap {

bool OnMainThread();  // false while a SignalsHeld is alive

class SignalsHeld {
 public:
  SignalsHeld() : SignalsHeld(OnMainThread()) {}
  explicit SignalsHeld(bool on_main_thread);  // for who has asked before
  ~SignalsHeld();
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
