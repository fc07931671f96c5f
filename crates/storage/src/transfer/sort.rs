//! Sorts more pairs of numbers than fit in memory, by merging sorted runs in temporary files.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

use super::temporary;

/// The number of pairs that are sorted in memory (16 bytes each, 16 MiB); more go to temporary
/// files.
pub const SORT_PAIRS: usize = 1 << 20;

/// Bytes read from a run at a time.
const RUN_BUFFER: usize = 64 << 10;

/// Two numbers. Pairs are sorted by the first number, then by the second.
pub(super) type Pair = (u64, u64);

/// Collects pairs in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    pairs: Vec<Pair>,
    runs: Vec<File>,
    count: u64,
    pairs_max: usize,
}

impl Sorter {
    pub(super) fn new() -> Self {
        Self::with_memory(SORT_PAIRS)
    }

    fn with_memory(pairs_max: usize) -> Self {
        Sorter { pairs: Vec::new(), runs: Vec::new(), count: 0, pairs_max }
    }

    pub(super) fn push(&mut self, pair: Pair) -> io::Result<()> {
        if self.pairs.len() == self.pairs_max {
            self.spill()?;
        }
        self.pairs.push(pair);
        self.count += 1;
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.pairs.sort_unstable();
        let write = |pairs: &[Pair]| {
            let mut run = BufWriter::with_capacity(RUN_BUFFER, tempfile::tempfile()?);
            for (a, b) in pairs {
                run.write_all(&a.to_le_bytes())?;
                run.write_all(&b.to_le_bytes())?;
            }
            let mut run = run.into_inner().map_err(io::IntoInnerError::into_error)?;
            run.rewind()?;
            Ok(run)
        };
        self.runs.push(write(&self.pairs).map_err(temporary)?);
        self.pairs.clear();
        Ok(())
    }

    /// All pairs, sorted.
    pub(super) fn finish(mut self) -> io::Result<Sorted> {
        self.pairs.sort_unstable();
        let mut sorted = Sorted {
            memory: self.pairs.into_iter(),
            runs: self.runs.into_iter().map(|run| BufReader::with_capacity(RUN_BUFFER, run)).collect(),
            heads: BinaryHeap::new(),
            left: self.count,
        };
        for run in 0..=sorted.runs.len() {
            sorted.refill(run)?;
        }
        Ok(sorted)
    }
}

/// The sorted pairs: an iterator that ends with the first error.
#[derive(Debug)]
pub(super) struct Sorted {
    memory: std::vec::IntoIter<Pair>,
    runs: Vec<BufReader<File>>,
    /// The next pair of each run; the last run is in memory.
    heads: BinaryHeap<Reverse<(Pair, usize)>>,
    left: u64,
}

impl Sorted {
    /// The number of remaining pairs.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let next = match self.runs.get_mut(run) {
            None => self.memory.next(),
            Some(file) => {
                let mut bytes = [0; 16];
                match file.read_exact(&mut bytes) {
                    Ok(()) => {
                        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
                        Some((number(0), number(8)))
                    }
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                    Err(error) => return Err(temporary(error)),
                }
            }
        };
        self.heads.extend(next.map(|pair| Reverse((pair, run))));
        Ok(())
    }
}

impl Iterator for Sorted {
    type Item = io::Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((pair, run)) = self.heads.pop()?;
        if let Err(error) = self.refill(run) {
            self.heads.clear();
            return Some(Err(error));
        }
        self.left -= 1;
        Some(Ok(pair))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorter_sorts_with_any_amount_of_memory(pairs in proptest::collection::vec((0..50_u64, any::<u64>()), 0..60), memory in 1..70_usize) {
            let mut sorter = Sorter::with_memory(memory);
            pairs.iter().for_each(|pair| sorter.push(*pair).unwrap());
            let sorted = sorter.finish().unwrap();
            prop_assert_eq!(sorted.left(), pairs.len() as u64);
            let sorted: Vec<Pair> = sorted.map(Result::unwrap).collect();
            let mut expected = pairs;
            expected.sort_unstable();
            prop_assert_eq!(sorted, expected);
        }
    }

    #[test]
    fn sorter_keeps_at_most_its_number_of_pairs_in_memory() {
        let mut sorter = Sorter::with_memory(3);
        for n in (0..10).rev() {
            sorter.push((n, n)).unwrap();
            assert!(sorter.pairs.len() <= 3, "{} pairs in memory", sorter.pairs.len());
        }
        assert_eq!((sorter.runs.len(), sorter.pairs.len()), (3, 1), "a file for each three pairs");
        let mut sorted = sorter.finish().unwrap();
        for n in 0..10 {
            assert_eq!(sorted.left(), 10 - n);
            assert_eq!(sorted.next().unwrap().unwrap(), (n, n));
        }
        assert_eq!(sorted.left(), 0);
        assert!(sorted.next().is_none());
    }

    #[test]
    fn finish_fails_if_a_sorted_run_is_unreadable() {
        let dir = tempfile::tempdir().unwrap();
        let unreadable = File::options().write(true).create_new(true).open(dir.path().join("run")).unwrap();
        let sorter = Sorter { pairs: vec![(1, 1)], runs: vec![unreadable], count: 2, pairs_max: 1 };
        assert!(sorter.finish().is_err(), "pairs are lost");
    }
}
