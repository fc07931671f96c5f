//! Unmaps the program's code after the start: [`unmap`].
//!
//! The start runs code that an idle server never runs again: flags, certificates, schemas of the built-in kinds, the
//! first state of the controllers. The kernel maps a page of code when it runs, with the 15 pages around it, and unmaps
//! none before memory is short. After the start the server therefore unmaps the whole program once. Pages stay in the
//! page cache, and the code that still runs is mapped again, 16 pages per fault. Figures are in
//! `docs/decisions/0020-profile-guided-optimization.md`.

use std::ops::Range;

/// Unmaps the pages of the program's file that are in memory. The next access maps them again. Returns the bytes that
/// were resident, and 0 if nothing could be unmapped: a debugger has changed the code, or the memory is locked.
pub(crate) fn unmap() -> u64 {
    let program = std::fs::read_link("/proc/self/exe");
    let Some((program, maps)) = program.ok().zip(std::fs::read_to_string("/proc/self/smaps").ok()) else { return 0 };
    let Some(program) = program.to_str() else { return 0 };
    unchanged_mappings(&maps, program)
        .filter(|mapping| drop_pages(&mapping.addresses))
        .map(|mapping| mapping.resident)
        .sum()
}

/// A mapping of the program's file that equals the file.
#[derive(Debug, PartialEq)]
struct Mapping {
    addresses: Range<usize>,
    /// The bytes in memory.
    resident: u64,
}

/// The mappings of the program in the text of `/proc/self/smaps` that are private, are not writable, and have no page of
/// their own. A page of its own (`Anonymous`, `Swap`) has other bytes than the file: the loader has written addresses to
/// it, or a debugger a breakpoint.
fn unchanged_mappings<'a>(smaps: &'a str, program: &'a str) -> impl Iterator<Item = Mapping> + 'a {
    let mut lines = smaps.lines().peekable();
    std::iter::from_fn(move || {
        loop {
            let header = lines.next()?;
            let mut fields = Vec::new();
            // Headers begin with an address in lower case, fields with an upper-case letter.
            while let Some(line) = lines.next_if(|line| line.starts_with(|first: char| first.is_ascii_uppercase())) {
                fields.push(line);
            }
            if let Some(mapping) = unchanged_mapping(header, &fields, program) {
                return Some(mapping);
            }
        }
    })
}

fn unchanged_mapping(header: &str, fields: &[&str], program: &str) -> Option<Mapping> {
    let (addresses, rest) = header.split_once(' ')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let is_constant = permissions.starts_with('r') && permissions[1..].starts_with('-') && permissions.ends_with('p');
    // Offset, device, inode, and the path after any number of spaces. The path may contain spaces.
    let path = rest.splitn(4, ' ').nth(3)?.trim_start();
    if !is_constant || path != program {
        return None;
    }
    let kib = |name: &str| {
        let value = fields.iter().find_map(|field| field.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    if kib("Anonymous")? != 0 || kib("Swap")? != 0 {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    let addresses = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    Some(Mapping { addresses, resident: kib("Rss")? * 1024 })
}

#[allow(unsafe_code)] // the only way to unmap pages; docs/decisions/0020-profile-guided-optimization.md measures it
fn drop_pages(addresses: &Range<usize>) -> bool {
    let start = std::ptr::without_provenance_mut(addresses.start);
    // SAFETY: the range is a mapping of the running program's file. It stays mapped as long as the process runs, so that
    // no other thread can have mapped other memory there since its address was read. It is private, not writable, and
    // has no page of its own, so that each page equals the file's: MADV_DONTNEED only removes entries of the page table,
    // and the next access, also of a thread that runs code in it, maps the same bytes again (madvise(2)).
    unsafe { libc::madvise(start, addresses.len(), libc::MADV_DONTNEED) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smaps(header: &str, anonymous: u32, swap: u32) -> String {
        format!(
            "{header}\nSize: 12 kB\nRss:               8 kB\nPrivate_Dirty:     0 kB\nAnonymous:         {anonymous} kB\n\
             Swap:              {swap} kB\nVmFlags: rd ex mr mw me sd \n"
        )
    }

    #[test]
    fn only_constant_mappings_of_the_program_without_pages_of_their_own_are_unmapped() {
        let code = "5580-5583 r-xp 00602000 fe:00 11 \x20 \x20 /opt/my server";
        let text = [
            smaps("5570-5573 r--p 00000000 fe:00 11                    /opt/my server", 0, 0),
            smaps(code, 0, 0),
            smaps("5590-5593 r--p 00612000 fe:00 11 /opt/my server", 4, 0),
            smaps("55a0-55a3 rw-p 00622000 fe:00 11 /opt/my server", 0, 0),
            smaps("55b0-55b3 r--s 00622000 fe:00 11 /opt/my server", 0, 0),
            smaps("7580-7583 r-xp 00602000 fe:00 12 /lib/libc.so.6", 0, 0),
            smaps("7590-7593 r-xp 00000000 00:00 0", 0, 0),
            smaps("75a0-75a3 r-xp 00602000 fe:00 13 /opt/my server/other", 0, 0),
        ]
        .concat();
        let of = |text: &str| unchanged_mappings(text, "/opt/my server").collect::<Vec<_>>();
        let mapping = |addresses| Mapping { addresses, resident: 8192 };
        assert_eq!(of(&text), [mapping(0x5570..0x5573), mapping(0x5580..0x5583)]);
        assert_eq!(of(&smaps(code, 4, 0)), [], "a breakpoint");
        assert_eq!(of(&smaps(code, 0, 4)), [], "a breakpoint that is swapped out");
        assert_eq!(of("5580-5583 r-xp 00602000 fe:00 11 /opt/my server\nRss: 8 kB\n"), [], "an old kernel");
        assert_eq!(of(""), []);
    }

    #[test]
    fn unmapped_code_runs_again_and_less_memory_is_resident() {
        let resident = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let program = std::fs::read_link("/proc/self/exe").unwrap();
            unchanged_mappings(&maps, program.to_str().unwrap()).map(|mapping| mapping.resident).sum::<u64>()
        };
        // Another test of this process may run code in the meantime.
        let has_unmapped = (0..20).any(|_| {
            let before = resident();
            unmap() > 0 && resident() < before
        });
        assert!(has_unmapped, "{} bytes of the program are resident", resident());
    }
}
