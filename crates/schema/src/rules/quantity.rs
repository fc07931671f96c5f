//! Kubernetes quantities (`500m`, `1.5Gi`, `1e3`): exact decimals, as apimachinery's
//! `resource.Quantity` holds them down to a billionth.

use std::cmp::Ordering;

/// A quantity, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(i128);

const SCALE: i128 = 1_000_000_000;

impl Quantity {
    /// Reads a quantity. Finer digits than a billionth are rounded up, away from zero, as in Kubernetes.
    /// Nothing for what is none, or beyond 10^29.
    pub(super) fn parse(text: &str) -> Option<Quantity> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() + fraction.len() > 60 {
            return None;
        }
        let (multiplier, exponent): (i128, i32) = match suffix {
            "" => (1, 0),
            "n" => (1, -9),
            "u" => (1, -6),
            "m" => (1, -3),
            "k" => (1, 3),
            "M" => (1, 6),
            "G" => (1, 9),
            "T" => (1, 12),
            "P" => (1, 15),
            "E" => (1, 18),
            "Ki" => (1 << 10, 0),
            "Mi" => (1 << 20, 0),
            "Gi" => (1 << 30, 0),
            "Ti" => (1 << 40, 0),
            "Pi" => (1 << 50, 0),
            "Ei" => (1 << 60, 0),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                (1, exponent.parse().ok()?)
            }
        };
        let mantissa: i128 = format!("{whole}{fraction}")
            .trim_start_matches('0')
            .parse()
            .or_else(|error| if number.bytes().all(|b| b == b'0' || b == b'.') { Ok(0) } else { Err(error) })
            .ok()?;
        let value = mantissa.checked_mul(multiplier)?;
        let shift = exponent + 9 - fraction.len() as i32;
        let value = if shift >= 0 {
            value.checked_mul(10i128.checked_pow(shift as u32)?)?
        } else {
            match 10i128.checked_pow(shift.unsigned_abs()) {
                Some(divisor) => value / divisor + i128::from(value % divisor != 0),
                None => i128::from(value != 0),
            }
        };
        Some(Quantity(if negative { -value } else { value }))
    }

    /// The quantity of a whole number.
    pub(super) fn of(int: i64) -> Quantity {
        Quantity(i128::from(int) * SCALE)
    }

    /// The whole number, where it is one that fits.
    pub(super) fn as_int(self) -> Option<i64> {
        (self.0 % SCALE == 0).then(|| i64::try_from(self.0 / SCALE).ok()).flatten()
    }

    pub(super) fn as_f64(self) -> f64 {
        self.0 as f64 / SCALE as f64
    }

    pub(super) fn sign(self) -> i64 {
        match self.0.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    pub(super) fn add(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_add(other.0).map(Quantity)
    }

    pub(super) fn sub(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_sub(other.0).map(Quantity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
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
        check("m", None);
        check("1x", None);
        check("1.2.3", None);
        check("1e", None);
        check("1e99999", None);
        check("1 Gi", None);
    }
}
