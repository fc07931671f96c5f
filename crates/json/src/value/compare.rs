//! Comparisons of values with Rust types.

use super::Value;

macro_rules! equal_to {
    ($type:ty, |$value:ident, $other:ident| $equal:expr) => {
        impl PartialEq<$type> for Value {
            fn eq(&self, other: &$type) -> bool {
                let ($value, $other) = (self, other);
                $equal
            }
        }

        impl PartialEq<Value> for $type {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    };
}

equal_to!(str, |value, text| value.as_str() == Some(text));
equal_to!(&str, |value, text| value.as_str() == Some(*text));
equal_to!(String, |value, text| value.as_str() == Some(text.as_str()));
equal_to!(bool, |value, other| value.as_bool() == Some(*other));
equal_to!(f64, |value, other| value.as_f64() == Some(*other));
equal_to!(i32, |value, other| value.as_i64() == Some(i64::from(*other)));
equal_to!(i64, |value, other| value.as_i64() == Some(*other));
equal_to!(u16, |value, other| value.as_u64() == Some(u64::from(*other)));
equal_to!(u32, |value, other| value.as_u64() == Some(u64::from(*other)));
equal_to!(u64, |value, other| value.as_u64() == Some(*other));
equal_to!(usize, |value, other| value.as_u64().is_some_and(|value| usize::try_from(value) == Ok(*other)));

macro_rules! reference_equal_to {
    ($($type:ty),*) => {$(
        impl PartialEq<$type> for &Value {
            fn eq(&self, other: &$type) -> bool {
                **self == *other
            }
        }
    )*};
}

reference_equal_to!(bool, f64, i32, i64, u16, u32, u64, usize, String);
