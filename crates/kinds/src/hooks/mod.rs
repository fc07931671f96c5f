//! What single built-in kinds do when they are written, beyond what all do: [`Steps`], a table by kind
//! (`pkg/registry/*/*/strategy.go`). Which fields never change is in [`super::validate`], and what a write
//! reaches at all is in [`super::scope`].
//!
//! ```text
//!  decode ─▶ defaults ─▶ create │ update ─▶ … ─▶ judge
//! ```

pub(crate) mod certificates;

use listwatch_validation::Object;

use crate::versions::autoscaling;

pub(crate) fn drop_carriers(autoscaler: &mut Object) -> Result<(), String> {
    autoscaling::drop_carriers(autoscaler);
    Ok(())
}
