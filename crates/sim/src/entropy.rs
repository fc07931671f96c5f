//! Makes the randomness of the operating system repeatable on a thread.
//!
//! Hash maps, `rand::rng` and UUIDs take their seeds from `getrandom(2)`. The standard library and the crate
//! `getrandom` call the C function of this name, and this module replaces the function. On a thread with a seed, it
//! returns the bytes of a generator; on other threads, it reads `/dev/urandom`.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_uint, c_void};
use std::io::Read as _;

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

thread_local! {
    static GENERATOR: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Seeds the randomness of this thread. Call it first on a new thread: a hash map that exists already keeps its seed.
pub(crate) fn seed_thread(seed: u64) {
    GENERATOR.with(|generator| *generator.borrow_mut() = Some(StdRng::seed_from_u64(seed)));
}

/// Fills `bytes` from the generator of this thread. Returns whether the thread has one.
fn fill_from_seed(bytes: &mut [u8]) -> bool {
    let filled = GENERATOR.try_with(|generator| {
        let mut generator = generator.try_borrow_mut().ok()?;
        generator.as_mut()?.fill_bytes(bytes);
        Some(())
    });
    matches!(filled, Ok(Some(())))
}

/// The replacement of `getrandom(2)`.
///
/// # Safety
/// `buffer` points to `length` writable bytes, as the C function demands.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller guarantees `length` writable bytes at `buffer`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    let is_filled = fill_from_seed(bytes)
        || std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes)).is_ok();
    if is_filled { isize::try_from(length).unwrap_or(-1) } else { -1 }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher as _;

    fn hash_and_random(seed: Option<u64>) -> (u64, u64) {
        let on_thread = move || {
            if let Some(seed) = seed {
                super::seed_thread(seed);
            }
            (RandomState::new().hash_one("key"), rand::random())
        };
        std::thread::spawn(on_thread).join().unwrap()
    }

    #[test]
    fn seeded_thread_repeats_its_hashes_and_random_numbers() {
        assert_eq!(hash_and_random(Some(7)), hash_and_random(Some(7)));
        assert_ne!(hash_and_random(Some(7)).0, hash_and_random(Some(8)).0);
        assert_ne!(hash_and_random(Some(7)).1, hash_and_random(Some(8)).1);
    }

    #[test]
    fn thread_without_a_seed_gets_different_random_numbers() {
        assert_ne!(hash_and_random(None), hash_and_random(None));
    }
}
