//! Kubernetes quantities (`500m`, `1.5Gi`, `1e3`) with the arithmetic of rules.

use std::cmp::Ordering;

use listwatch_meta::quantity;

/// A quantity in units of 10^-9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

const SCALE: i128 = 1_000_000_000;

impl Quantity {
    /// Parses a quantity. `None` if it is invalid or above 10^29.
    pub(crate) fn parse(text: &str) -> Option<Quantity> {
        quantity::nanos(text).ok().flatten().map(Quantity)
    }

    /// The quantity of a whole number.
    pub(crate) fn of(int: i64) -> Quantity {
        Quantity(i128::from(int) * SCALE)
    }

    /// The value as an integer. `None` for a fraction, or for a value that an `i64` cannot represent.
    pub(crate) fn as_int(self) -> Option<i64> {
        (self.0 % SCALE == 0).then(|| i64::try_from(self.0 / SCALE).ok()).flatten()
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / SCALE as f64
    }

    pub(crate) fn sign(self) -> i64 {
        match self.0.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    pub(crate) fn add(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_add(other.0).map(Quantity)
    }

    pub(crate) fn sub(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_sub(other.0).map(Quantity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_in_billionths() {
        fn check(text: &str, nanos: Option<i128>) {
            assert_eq!(Quantity::parse(text).map(|quantity| quantity.0), nanos, "{text:?}");
        }
        check("0", Some(0));
        check("1", Some(SCALE));
        check("500m", Some(SCALE / 2));
        check("1.5Gi", Some(1_610_612_736 * SCALE));
        check("1e3", Some(1000 * SCALE));
        check("-1E-1", Some(-SCALE / 10));
        check("1E", Some(1_000_000_000_000_000_000 * SCALE));
        check("0.0000000001", Some(1));
        check(".5", Some(SCALE / 2));
        check("5.", Some(5 * SCALE));
        check("", None);
        // A quantity without digits is zero, with any unit.
        check("m", Some(0));
        check("1x", None);
        check("1.2.3", None);
        check("1e", None);
        check("1e99999", None);
        check("1 Gi", None);
    }
}
