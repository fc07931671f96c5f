//! Keeps the memory of response chunks in the heap between responses: [`set`].
//!
//! A list is sent in chunks of up to 128 KiB. By default, glibc returns the end of a heap to the system when more than
//! 128 KiB are free there, and the next chunk takes page faults for each of its pages again. Higher thresholds keep at
//! most 2 MiB at the end of each heap. glibc has one heap for the main thread, and up to eight for each core;
//! [`crate::trim`] returns the end of the first only. Figures are in `docs/decisions/0009-memory-after-a-peak.md`.

/// Sets the thresholds of the allocator. Does nothing if the allocator is not glibc's, or if the operator has set a
/// threshold in the environment. Call this before the process starts another thread.
pub(crate) fn set() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::set();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    /// The number of free bytes at the end of a heap above which glibc returns them to the system.
    pub(super) const TRIM_THRESHOLD_BYTES: i32 = 2 * 1024 * 1024;
    /// The size of a block, in bytes, from which on the block is mapped, and unmapped when it is freed.
    pub(super) const MMAP_THRESHOLD_BYTES: i32 = 1024 * 1024;

    pub(super) fn set() {
        if is_set_by_operator(|name| std::env::var(name).ok()) {
            return;
        }
        for (parameter, bytes) in
            [(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES), (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)]
        {
            if !set_parameter(parameter, bytes) {
                tracing::debug!(parameter, bytes, "the allocator rejected a threshold");
            }
        }
    }

    /// Whether the environment sets a threshold, by the variables of mallopt(3) or by tunables.
    pub(super) fn is_set_by_operator(variable: impl Fn(&str) -> Option<String>) -> bool {
        let tunables = variable("GLIBC_TUNABLES").unwrap_or_default();
        ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"].iter().any(|name| variable(name).is_some())
            || ["glibc.malloc.trim_threshold=", "glibc.malloc.mmap_threshold="]
                .iter()
                .any(|tunable| tunables.contains(tunable))
    }

    #[allow(unsafe_code)] // the only way to glibc's thresholds; docs/decisions/0009-memory-after-a-peak.md measures them
    fn set_parameter(parameter: libc::c_int, bytes: libc::c_int) -> bool {
        // SAFETY: `mallopt` takes no pointer and checks its arguments. glibc's manual calls it `MT-Unsafe init
        // const:mallopt`: no other thread may use the allocator. `process::prepare` runs before any thread starts.
        unsafe { libc::mallopt(parameter, bytes) == 1 }
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::glibc::is_set_by_operator;

    #[test]
    fn thresholds_of_the_environment_have_precedence() {
        let is_set = |name: &'static str, value: &'static str| {
            is_set_by_operator(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(is_set("MALLOC_TRIM_THRESHOLD_", "1"));
        assert!(is_set("MALLOC_MMAP_THRESHOLD_", "1"));
        assert!(is_set("GLIBC_TUNABLES", "glibc.malloc.tcache_count=9:glibc.malloc.mmap_threshold=9"));
        assert!(is_set("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=9"));
        assert!(!is_set("GLIBC_TUNABLES", "glibc.malloc.tcache_count=9"));
        assert!(!is_set("HOME", "/"));
    }

    #[test]
    fn freed_chunks_of_a_response_stay_in_the_heap() {
        super::set();
        let faults = || {
            let status = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
            let fields = status.rsplit_once(") ").expect("a name in parentheses").1;
            fields.split(' ').nth(7).expect("the number of minor faults").parse::<u64>().expect("a number")
        };
        // A chunk of 100 KiB is below the default threshold of mapping. Four of them exceed that of a trim.
        let touch = || drop(std::hint::black_box([(); 4].map(|()| vec![1_u8; 100 * 1024])));
        touch();
        let before = faults();
        (0..100).for_each(|_| touch());
        let taken = faults() - before;
        assert!(taken < 1_000, "{taken} page faults for 100 times 100 pages: freed chunks leave the heap");
    }
}
