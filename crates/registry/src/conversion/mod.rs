//! Conversion between the versions of a kind.
//!
//! | versions of | conversion | where it runs |
//! |---|---|---|
//! | a built-in kind | [`Conversion`]: two functions over trees | for all watchers of the second version, as an encoding |
//! | a definition, strategy `None` | [`Form`](crate::Form): another `apiVersion`, and pruning | for all watchers of the version, as an encoding |
//! | a definition, strategy `Webhook` | [`Converter`]: a webhook, or a function of this process | [`ConvertedStorage`]: below one cache per version |
//!
//! Only a webhook conversion can fail, take time or change the values of selectable fields. Each served version of such
//! a definition therefore has its own cache, as in kube-apiserver. The cache reads the store through a
//! [`ConvertedStorage`]. Lists, watches, selectors and Tables read converted objects and need no code for conversion.
//!
//! ```text
//!  store ─▶ ConvertedStorage(v1) ─▶ cache of v1 ─▶ readers of v1      objects of v1 pass without a call
//!        └▶ ConvertedStorage(v2) ─▶ cache of v2 ─▶ readers of v2      one review per page of a list and burst of events
//! ```

mod callers;
mod converter;
mod metrics;
mod second_version;
mod storage;
#[cfg(test)]
mod tests;
mod watch;

pub use self::callers::{ConversionCallers, ConversionHandler, ConversionRequest};
pub(crate) use self::converter::Converter;
pub use self::second_version::Conversion;
pub(crate) use self::storage::{ConvertedStorage, PreviousValues};
