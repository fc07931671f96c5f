//! Kubernetes quantities (`apimachinery/pkg/api/resource.Quantity`): exact decimals with nine
//! decimal places.
//!
//! Each quantity has one canonical form: `1000m` is `1`, `1024Mi` is `1Gi`, `0.1` is `100m`.
//! kube-apiserver converts quantities whenever it decodes an object, and clients compare the texts
//! ([`canonical`]). Validation rules of custom resources compute with them ([`nanos`]).
//!
//! ```
//! use listwatch_meta::quantity::{canonical, nanos};
//! assert_eq!(canonical("1000m"), Ok(Some("1".to_owned())));
//! assert_eq!(nanos("1.5"), Ok(Some(1_500_000_000)));
//! ```

use std::cmp::Ordering;
use std::fmt;

/// kube-apiserver's error for a text that is not a quantity.
const MALFORMED: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const BAD_SUFFIX: &str = "unable to parse quantity's suffix";
/// Nano-units, the smallest representable part, per unit.
const NANO: i128 = 1_000_000_000;
/// Nano-units per milli-unit.
const MILLI: i128 = 1_000_000;
/// The largest number of digits of a quantity that is converted to the canonical form. A longer quantity keeps its
/// written form.
const DIGITS_MAX: usize = 18;

/// Compares two quantities. Returns `None` if one is invalid or exceeds about 10^29.
pub fn compare(left: &str, right: &str) -> Option<Ordering> {
    Some(nanos(left).ok()??.cmp(&nanos(right).ok()??))
}

/// Parses a quantity as nano-units, rounded away from zero. Returns `None` if the value exceeds
/// about 10^29.
///
/// # Errors
/// The decoder's message for a text that is not a quantity.
pub fn nanos(text: &str) -> Result<Option<i128>, &'static str> {
    Ok(parse(text)?.map(|(nanos, ..)| nanos))
}

/// The sum of two quantities, in the form of the first. Returns `None` if one is invalid or exceeds
/// about 10^29.
pub fn sum(left: &str, right: &str) -> Option<String> {
    let ((left, form, _), (right, ..)) = (parse(left).ok()??, parse(right).ok()??);
    Some(print(left.checked_add(right)?, form))
}

/// A quantity for computations (`resource.Quantity`). Quantities are compared by value; [`fmt::Display`] prints the
/// canonical form.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

impl Quantity {
    /// Zero, in decimal form.
    pub const ZERO: Quantity = Quantity { nanos: 0, form: Form::Decimal };

    /// Parses a quantity. Returns `None` if the text is not a quantity or exceeds about 10^29.
    pub fn parse(text: &str) -> Option<Self> {
        let (nanos, form, _) = parse(text).ok()??;
        Some(Quantity { nanos, form })
    }

    /// Creates the quantity of a count, in decimal form.
    pub fn from_count(count: usize) -> Self {
        Quantity { nanos: i128::try_from(count).unwrap_or(i128::MAX).saturating_mul(NANO), form: Form::Decimal }
    }

    /// The value in nano-units.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// The sum, in the form of `self`, or that of `other` if `self` is zero, as in `Quantity.Add`. Sums saturate at
    /// about 10^29.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let form = if self.nanos == 0 { other.form } else { self.form };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), form }
    }

    /// The difference, in the form that [`Quantity::plus`] would have (`Quantity.Sub`).
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let form = if self.nanos == 0 { other.form } else { self.form };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), form }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self.nanos, self.form))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical form of a quantity; `None` for a quantity that keeps its written form.
///
/// # Errors
/// The decoder's message for a text that is not a quantity.
pub fn canonical(text: &str) -> Result<Option<String>, &'static str> {
    Ok(parse(text)?.filter(|(_, _, kept)| !kept).map(|(nanos, form, _)| print(nanos, form)))
}

/// The canonical form of a quantity in a list of resources: rounded away from zero to milli-units
/// (`SetDefaults_ResourceList` in `pkg/apis/core/v1/defaults.go`). `None` for a quantity that keeps its written form.
///
/// # Errors
/// The decoder's message for a text that is not a quantity.
pub fn canonical_in_resource_list(text: &str) -> Result<Option<String>, &'static str> {
    let Some((nanos, form, kept)) = parse(text)? else { return Ok(None) };
    let parts = nanos % MILLI;
    if parts != 0 {
        return Ok(Some(print(nanos - parts + nanos.signum() * MILLI, form)));
    }
    Ok((!kept).then(|| print(nanos, form)))
}

/// Parses a quantity: its nano-units, its form, and whether the text is canonical. Returns `None`
/// if the value exceeds about 10^29.
///
/// # Errors
/// The decoder's message for a text that is not a quantity.
fn parse(text: &str) -> Result<Option<(i128, Form, bool)>, &'static str> {
    let signless = text.strip_prefix(['+', '-']).unwrap_or(text);
    let negative = text.starts_with('-');
    let digits = signless.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(signless.len());
    let (number, suffix) = signless.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if text.is_empty() || fraction.contains('.') {
        return Err(MALFORMED);
    }
    // No digits mean zero, with any unit: "Gi" is valid, and so is "-".
    let (base, exponent, form) = scale(suffix)?;
    let whole = whole.trim_start_matches('0');
    let Some(nanos) = mantissa(whole, fraction).and_then(|value| scaled(value, fraction.len(), base, exponent)) else {
        return Ok(None);
    };
    let kept = whole.len() + fraction.len() > DIGITS_MAX || is_kept(whole, fraction, exponent, form);
    Ok(Some((if negative { -nanos } else { nanos }, form, kept)))
}

/// The digits on both sides of the point as one number.
fn mantissa(whole: &str, fraction: &str) -> Option<i128> {
    let mut digits = whole.bytes().chain(fraction.bytes()).map(|digit| digit - b'0');
    if whole.len() + fraction.len() <= DIGITS_MAX {
        return Some(digits.fold(0_u64, |value, digit| value * 10 + u64::from(digit)).into());
    }
    digits.try_fold(0_i128, |value, digit| value.checked_mul(10)?.checked_add(digit.into()))
}

/// Whether Kubernetes keeps the written form of a quantity unchanged: `+1`, `5.`, `1.500`.
fn is_kept(whole: &str, fraction: &str, exponent: i32, form: Form) -> bool {
    if form == Form::Binary {
        // A unit that exceeds 64 bits in bytes always takes the full conversion.
        let digits = i32::try_from(whole.len()).unwrap_or(i32::MAX);
        let precise = 14_i32.saturating_sub(digits) >= exponent * 3 / 10;
        return fraction.is_empty() && precise && whole.parse::<i64>().is_ok_and(|value| value & 7 != 0);
    }
    let last_three = fraction.bytes().rev().chain(whole.bytes().rev()).take(3);
    let scale = exponent.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
    scale >= -9 && scale % 3 == 0 && !whole.is_empty() && last_three.filter(|digit| *digit == b'0').count() < 3
}

/// The base, exponent and form of a suffix.
fn scale(suffix: &str) -> Result<(u32, i32, Form), &'static str> {
    let decimal = |exponent| Ok((10, exponent, Form::Decimal));
    let binary = |exponent| Ok((2, exponent, Form::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        other => {
            let exponent = other.strip_prefix(['e', 'E']).and_then(|exponent| exponent.parse::<i32>().ok());
            if let Some(exponent) = exponent {
                return Ok((10, exponent, Form::Exponent));
            }
            let letters = other.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
            let number = letters.strip_prefix(['-', '+']).unwrap_or(letters);
            let well_formed = number.bytes().all(|byte| byte.is_ascii_digit());
            Err(if well_formed { BAD_SUFFIX } else { MALFORMED })
        }
    }
}

/// Computes `mantissa / 10^fraction * base^exponent` in nano-units, rounded away from zero.
fn scaled(mantissa: i128, fraction: usize, base: u32, exponent: i32) -> Option<i128> {
    if mantissa == 0 {
        return Some(0);
    }
    let fraction = i32::try_from(fraction).ok()?;
    let mut value = mantissa;
    let mut tens = 9 - fraction;
    if base == 10 {
        tens = tens.checked_add(exponent)?;
    } else {
        value = value.checked_mul(power(base, u32::try_from(exponent).ok()?)?)?;
    }
    if tens >= 0 {
        return value.checked_mul(power(10, u32::try_from(tens).ok()?)?);
    }
    let Some(divisor) = power(10, tens.unsigned_abs()) else { return Some(i128::from(value > 0)) };
    Some(value / divisor + i128::from(value % divisor != 0))
}

/// Computes a power of 2 or 10 with 64-bit arithmetic, which is several times as fast as 128-bit
/// arithmetic and suffices for all suffixes.
fn power(base: u32, exponent: u32) -> Option<i128> {
    match u64::from(base).checked_pow(exponent) {
        Some(power) => Some(power.into()),
        None => i128::from(base).checked_pow(exponent),
    }
}

fn print(nanos: i128, form: Form) -> String {
    if nanos == 0 {
        return "0".to_owned();
    }
    let mut form = form;
    // A binary form cannot show parts of a byte (`Quantity.CanonicalizeBytes`).
    if form == Form::Binary && (nanos.abs() < 1024 * NANO || nanos % NANO != 0) {
        form = Form::Decimal;
    }
    if form == Form::Binary {
        let mut value = nanos.abs() / NANO;
        let mut steps = 0;
        while value % 1024 == 0 && steps < 6 {
            value /= 1024;
            steps += 1;
        }
        let sign = if nanos < 0 { "-" } else { "" };
        return format!("{sign}{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps]);
    }
    let (mut value, mut exponent) = (nanos, -9);
    while value % 1000 == 0 && (form == Form::Exponent || exponent < 18) {
        value /= 1000;
        exponent += 3;
    }
    if form == Form::Exponent {
        return if exponent == 0 { value.to_string() } else { format!("{value}e{exponent}") };
    }
    let suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let suffix = usize::try_from((exponent + 9) / 3).ok().and_then(|at| suffixes.get(at)).copied().unwrap_or_default();
    format!("{value}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(amount: &str, expected: Result<&str, &str>) {
        let found = canonical(amount).map(|found| found.unwrap_or_else(|| amount.to_owned()));
        assert_eq!(found, expected.map(str::to_owned), "{amount:?}");
    }

    #[test]
    fn canonical_quantity_form_equals_kubernetes() {
        for (amount, expected) in [
            ("1", "1"),
            ("1000m", "1"),
            ("0.1", "100m"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1000k", "1M"),
            ("1024", "1024"),
            ("1e3", "1e3"),
            ("12E3", "12E3"),
            ("1e1", "10"),
            ("1e-3", "1e-3"),
            ("1024Mi", "1Gi"),
            ("1024Ki", "1Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("1.5Gi", "1536Mi"),
            ("642.368Gi", "689737387999232m"),
            ("1.2Gi", "1288490188800m"),
            ("-1.2Ki", "-1228800m"),
            ("1.0000000001Ki", "1024000000103n"),
            ("689737388000", "689737388k"),
            ("1Ei", "1Ei"),
            ("-1", "-1"),
            ("+1", "+1"),
            ("-2048Ki", "-2Mi"),
            ("0", "0"),
            ("0Mi", "0"),
            ("00", "0"),
            (".5", "500m"),
            ("5.", "5."),
            ("1.500", "1.500"),
            ("Gi", "0"),
            ("-", "0"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("9999999999999999999999", "9999999999999999999999"),
        ] {
            check(amount, Ok(expected));
        }
        for broken in ["", "a", "1.2.3", "1 Gi", "1x"] {
            check(broken, Err(MALFORMED));
        }
        for broken in ["1ki", "1Kim", "1EE", "1e"] {
            check(broken, Err(BAD_SUFFIX));
        }
    }

    #[test]
    fn quantity_in_a_resource_list_is_rounded_up_to_milli() {
        for (amount, expected) in [
            ("500u", "1m"),
            ("1n", "1m"),
            ("0.0001", "1m"),
            ("1500u", "2m"),
            ("-500u", "-1m"),
            ("1e-6", "1e-3"),
            ("1000u", "1m"),
            ("0.0009765625Ki", "1"),
            ("1.0000001Ki", "1024001m"),
            ("1Gi", "1Gi"),
            ("1000m", "1"),
            ("1.500", "1.500"),
            ("+1", "+1"),
            ("0", "0"),
            ("9999999999999999999999", "9999999999999999999999"),
        ] {
            let found = canonical_in_resource_list(amount).map(|found| found.unwrap_or_else(|| amount.to_owned()));
            assert_eq!(found, Ok(expected.to_owned()), "{amount:?}");
        }
        assert_eq!(canonical_in_resource_list("1x"), Err(MALFORMED));
    }

    #[test]
    fn sum_and_difference_keep_the_form_of_the_first_nonzero_quantity() {
        let quantity = |text: &str| Quantity::parse(text).unwrap();
        for (left, right, sum, difference) in [
            ("1Gi", "1G", "2073741824", "73741824"),
            ("0", "1Gi", "1Gi", "-1Gi"),
            ("1500m", "500m", "2", "1"),
            ("2", "2", "4", "0"),
        ] {
            assert_eq!(quantity(left).plus(quantity(right)).to_string(), sum, "{left} + {right}");
            assert_eq!(quantity(left).minus(quantity(right)).to_string(), difference, "{left} - {right}");
        }
        assert!(quantity("1Gi") > quantity("1G"));
        assert_eq!(Quantity::from_count(1000).to_string(), "1k");
        assert_eq!(Quantity::parse("x"), None);
    }

    #[test]
    fn quantities_in_different_forms_compare_by_value() {
        use std::cmp::Ordering::{Equal, Greater, Less};
        for (left, right, expected) in [
            ("1", "1000m", Some(Equal)),
            ("1Gi", "1G", Some(Greater)),
            ("-1", "0", Some(Less)),
            ("100m", "0.2", Some(Less)),
            ("x", "1", None),
            ("1000555691227322778", "1000555691227322777", Some(Greater)),
            ("9999999999999999999999", "1Gi", Some(Greater)),
            ("0e99999", "0", Some(Equal)),
            ("1e99999", "0", None),
        ] {
            assert_eq!(compare(left, right), expected, "{left} and {right}");
        }
    }

    proptest::proptest! {
        /// A binary quantity that is not a multiple of a binary unit is formatted in bytes, without
        /// a unit. Parsing this text gives a decimal quantity, which may have a shorter form:
        /// `1.953125Ki` is `2000`, and that is `2k`. The value is the same, and the
        /// form does not change again.
        #[test]
        fn canonical_quantity_form_is_stable_after_a_second_conversion(text in "[+-]?[0-9]{1,6}(\\.[0-9]{1,4})?(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|e3|e-3|)") {
            let again = |text: &str| canonical(text).unwrap().unwrap_or_else(|| text.to_owned());
            let once = again(&text);
            let twice = again(&once);
            if text.ends_with('i') && !once.ends_with('i') {
                proptest::prop_assert_eq!(compare(&twice, &once), Some(std::cmp::Ordering::Equal), "{} and {}", twice, once);
                proptest::prop_assert_eq!(again(&twice), twice);
            } else {
                proptest::prop_assert_eq!(twice, once);
            }
        }
    }
}
