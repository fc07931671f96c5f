//! `value["name"]` and `value[0]`.

use super::Value;
use crate::{JsonString, Map};

/// A key of a value: the name of a member or the index of an item.
pub trait Index: sealed::Sealed {
    #[doc(hidden)]
    fn index_into<'v>(&self, value: &'v Value) -> Option<&'v Value>;
    #[doc(hidden)]
    fn index_into_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value>;
    /// The value at this index, which is added as `null` if the object lacks it.
    #[doc(hidden)]
    fn index_or_insert<'v>(&self, value: &'v mut Value) -> &'v mut Value;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for usize {}
    impl Sealed for str {}
    impl Sealed for String {}
    impl Sealed for crate::JsonString {}
    impl<T: Sealed + ?Sized> Sealed for &T {}
}

impl Index for usize {
    fn index_into<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_array()?.get(*self)
    }

    fn index_into_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_array_mut()?.get_mut(*self)
    }

    fn index_or_insert<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        let Value::Array(items) = value else { panic!("{value} has no index {self}, for it is no list") };
        let len = items.len();
        items.get_mut(*self).unwrap_or_else(|| panic!("no index {self} in a list of {len} items"))
    }
}

impl Index for str {
    fn index_into<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_object()?.get(self)
    }

    fn index_into_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn index_or_insert<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let Value::Object(map) = value else { panic!("{value} has no name {self:?}, for it is no object") };
        map.entry(JsonString::from(self)).or_insert(Value::Null)
    }
}

macro_rules! index_by_text {
    ($($type:ty),*) => {$(
        impl Index for $type {
            fn index_into<'v>(&self, value: &'v Value) -> Option<&'v Value> {
                self.as_str().index_into(value)
            }

            fn index_into_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
                self.as_str().index_into_mut(value)
            }

            fn index_or_insert<'v>(&self, value: &'v mut Value) -> &'v mut Value {
                self.as_str().index_or_insert(value)
            }
        }
    )*};
}

index_by_text!(String, JsonString);

impl<T: Index + ?Sized> Index for &T {
    fn index_into<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        (**self).index_into(value)
    }

    fn index_into_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        (**self).index_into_mut(value)
    }

    fn index_or_insert<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        (**self).index_or_insert(value)
    }
}

impl<I: Index> std::ops::Index<I> for Value {
    type Output = Value;

    /// The value at a name or an index; `null` if there is none.
    fn index(&self, index: I) -> &Value {
        static NULL: Value = Value::Null;
        index.index_into(self).unwrap_or(&NULL)
    }
}

impl<I: Index> std::ops::IndexMut<I> for Value {
    /// The value at a name or an index. A name that an object lacks is added as `null`, and `null` becomes an object.
    ///
    /// # Panics
    /// If the value is neither an object nor `null` and the index is a name, or if a list has no such index.
    fn index_mut(&mut self, index: I) -> &mut Value {
        index.index_or_insert(self)
    }
}
