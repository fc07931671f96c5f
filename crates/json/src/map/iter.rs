//! Iterators over the members of an object, in their order.

use std::iter::FusedIterator;
use std::{slice, vec};

use super::{JsonString, Member};
use crate::Value;

/// Defines an iterator that converts each member with `$convert`.
macro_rules! iterator {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)?, $inner:ty, $from:ty, $item:ty, $make:expr, $convert:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name $(<$life>)? {
            members: $inner,
        }

        impl $(<$life>)? $name $(<$life>)? {
            pub(super) fn new(members: $from) -> Self {
                let make: fn($from) -> $inner = $make;
                Self { members: make(members) }
            }
        }

        impl $(<$life>)? Iterator for $name $(<$life>)? {
            type Item = $item;

            fn next(&mut self) -> Option<Self::Item> {
                self.members.next().map($convert)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.members.size_hint()
            }
        }

        impl $(<$life>)? DoubleEndedIterator for $name $(<$life>)? {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.members.next_back().map($convert)
            }
        }

        impl $(<$life>)? ExactSizeIterator for $name $(<$life>)? {}
        impl $(<$life>)? FusedIterator for $name $(<$life>)? {}
    };
}

iterator! {
    /// The members of an object.
    Iter<'a>, slice::Iter<'a, Member>, &'a [Member], (&'a JsonString, &'a Value),
    |members| members.iter(), |(name, value)| (name, value)
}
iterator! {
    /// The members of an object, with mutable values.
    IterMut<'a>, slice::IterMut<'a, Member>, &'a mut [Member], (&'a JsonString, &'a mut Value),
    |members| members.iter_mut(), |(name, value)| (&*name, value)
}
iterator! {
    /// An iterator that takes the members out of an object.
    IntoIter, vec::IntoIter<Member>, Vec<Member>, Member,
    IntoIterator::into_iter, |member| member
}
iterator! {
    /// The names of an object.
    Keys<'a>, slice::Iter<'a, Member>, &'a [Member], &'a JsonString,
    |members| members.iter(), |(name, _)| name
}
iterator! {
    /// The values of an object.
    Values<'a>, slice::Iter<'a, Member>, &'a [Member], &'a Value,
    |members| members.iter(), |(_, value)| value
}
iterator! {
    /// The mutable values of an object.
    ValuesMut<'a>, slice::IterMut<'a, Member>, &'a mut [Member], &'a mut Value,
    |members| members.iter_mut(), |(_, value)| value
}
iterator! {
    /// An iterator that takes the values out of an object.
    IntoValues, vec::IntoIter<Member>, Vec<Member>, Value,
    IntoIterator::into_iter, |(_, value)| value
}

impl Clone for Iter<'_> {
    fn clone(&self) -> Self {
        Iter { members: self.members.clone() }
    }
}

impl Clone for Keys<'_> {
    fn clone(&self) -> Self {
        Keys { members: self.members.clone() }
    }
}

impl Clone for Values<'_> {
    fn clone(&self) -> Self {
        Values { members: self.members.clone() }
    }
}
