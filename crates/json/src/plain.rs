//! [`is_plain`] and [`plain_len`]: the text that needs no escape in JSON.

/// The bytes that are compared at once.
const WORD: usize = size_of::<u64>();

/// Whether a text needs no escape in JSON: it has no `"`, no `\` and no control character (RFC 8259, section 7).
#[inline]
pub fn is_plain(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks::<WORD>();
    let mut found = 0;
    for word in words {
        found |= find_escaped(u64::from_ne_bytes(*word));
    }
    if !rest.is_empty() {
        // The last word again, or the whole short text.
        found |= match text.last_chunk::<WORD>() {
            Some(word) => find_escaped(u64::from_ne_bytes(*word)),
            None => find_escaped(word_of(rest)),
        };
    }
    found == 0
}

/// The number of bytes before the first one that JSON escapes in a string: `"`, `\` or a control character (RFC 8259,
/// section 7). In a document, the first byte behind a string without escapes is its closing quote.
#[inline]
pub fn plain_len(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk::<WORD>) {
        let found = find_escaped(u64::from_le_bytes(*word));
        if found != 0 {
            // The lowest bit is exact: a borrow only reaches the bytes above.
            return at + found.trailing_zeros() as usize / 8;
        }
        at += WORD;
    }
    let rest = &text[at..];
    at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len())
}

/// A word with all bytes of a text of 1 to 7 bytes, and with copies of some of them.
fn word_of(text: &[u8]) -> u64 {
    match (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        (Some(first), Some(last)) => u64::from(u32::from_ne_bytes(*first)) << 32 | u64::from(u32::from_ne_bytes(*last)),
        // First, middle and last byte.
        _ => {
            let at = |at: usize| u64::from(text.get(at).copied().unwrap_or(b' '));
            let (first, middle, last) = (at(0), at(text.len() / 2), at(text.len() - 1));
            // The other bytes are copies of the first one.
            first.wrapping_mul(0x0101_0101_0101_0000) | middle << 8 | last
        }
    }
}

/// Sets the highest bit of each byte that is `"`, `\` or a control character. Above the first such byte, bits of other
/// bytes may be set as well. The result is zero if the word has no such byte.
fn find_escaped(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    // The highest bit of a byte below `limit`, for limits up to 128; bytes from 128 on are excluded by `!word`.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
    below(word, 0x20) | below(word ^ (ONES * u64::from(b'"')), 1) | below(word ^ (ONES * u64::from(b'\\')), 1)
}
