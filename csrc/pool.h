// A few threads that work through the stages of a pass together, and sleep between passes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace headstart {

class Pool {
 public:
  explicit Pool(int threads) {
    for (int t = 1; t < threads; t++) workers_.emplace_back([this, t] { serve(t); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      job_++;
    }
    wake_.notify_all();
    for (std::thread& w : workers_) w.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(t) once on each thread, t = 0 being the caller's; comes back when all are done. `work` must not throw.
  void run(const std::function<void(int)>& work) {
    if (workers_.empty()) return work(0);
    {
      std::lock_guard lock(mutex_);
      work_ = &work;
      pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
      job_++;
    }
    wake_.notify_all();
    work(0);
    wait_until([this] { return pending_.load(std::memory_order_acquire) == 0; });
  }

  // Inside `run`: nobody goes on before everybody is here. Those who wait call `meanwhile`, over and over, while it returns true.
  template <class Meanwhile>
  void barrier(Meanwhile meanwhile) {
    const int size = this->size();
    if (size == 1) return;
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      const auto ready = [&] { return turn_.load(std::memory_order_acquire) != turn; };
      while (!ready() && meanwhile()) {}
      wait_until(ready);
    }
  }
  void barrier() {
    barrier([] { return false; });
  }

 private:
  static void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // a short stall; `yield` does nothing on cores that run one thread each
#endif
  }

  // Stages last microseconds: look often at first. A thread that waits long has lost its partner's core to someone: give way.
  template <class Ready>
  static void wait_until(Ready ready) {
    for (int look = 0; !ready(); look++) {
      if (look < 4000) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void serve(int t) {
    uint64_t seen = 0;
    for (;;) {
      // Waking up takes longer than the gap between two passes of a small model: look for a moment (some 200 µs) before sleeping.
      for (int look = 0; look < 12000 && job_.load(std::memory_order_acquire) == seen; look++) relax();
      const std::function<void(int)>* work = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen; });
        seen = job_.load(std::memory_order_relaxed);
        if (stop_) return;
        work = work_;
      }
      (*work)(t);
      pending_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<uint64_t> job_{0};
  bool stop_ = false;
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
};

}  // namespace headstart
