//! Divides seats among levels in proportion to their demand, within bounds
//! (`computeConcurrencyAllocation` in `flowcontrol/conc_alloc.go`).

/// The smallest demand. Smaller demands are raised to this value, which prevents a division by zero (`MinTarget`).
const TARGET_MIN: f64 = 0.001;
/// The largest rounding error of a sum that is ignored.
const EPSILON: f64 = 1e-7;

/// One of the classes that share seats. `lower` ≤ `target` and `lower` ≤ `upper`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub(crate) target: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Class {
    fn at(&self, proportion: f64) -> f64 {
        (proportion * self.target.max(TARGET_MIN)).min(self.upper).max(self.lower)
    }
}

/// Returns the seats of each class and the proportion. A class has `proportion × target` seats, limited to its bounds.
/// The seats add up to `sum`; `None` if the bounds make that impossible.
pub(crate) fn allocate(sum: f64, classes: &[Class]) -> Option<(Vec<f64>, f64)> {
    let total = |proportion: f64| -> f64 { classes.iter().map(|class| class.at(proportion)).sum() };
    if classes.iter().any(|class| class.lower < 0.0 || class.target < class.lower || class.upper < class.lower) {
        return None;
    }
    // `total` is continuous, never falls, and is linear between two of these proportions.
    let bounds = classes.iter().flat_map(|class| {
        let target = class.target.max(TARGET_MIN);
        [class.lower / target, class.upper / target]
    });
    let mut bounds: Vec<f64> = bounds.collect();
    bounds.sort_by(f64::total_cmp);
    let (first, last) = (*bounds.first()?, *bounds.last()?);
    if total(first) - sum > EPSILON || sum - total(last) > EPSILON {
        return None;
    }
    let found = bounds.partition_point(|bound| total(*bound) < sum);
    let proportion = match found {
        0 => first,
        found if found == bounds.len() => last,
        found => {
            let (low, high) = (bounds[found - 1], bounds[found]);
            let (below, above) = (total(low), total(high));
            if above > below { low + (high - low) * (sum - below) / (above - below) } else { high }
        }
    };
    Some((classes.iter().map(|class| class.at(proportion)).collect(), proportion))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(sum: f64, classes: &[(f64, f64, f64)], expected: Option<&[f64]>) {
        let classes: Vec<Class> = classes
            .iter()
            .map(|(lower, target, upper)| Class { target: *target, lower: *lower, upper: *upper })
            .collect();
        let found = allocate(sum, &classes).map(|(seats, _)| seats);
        match (&found, expected) {
            (Some(found), Some(expected)) => {
                let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
                assert!(close && found.len() == expected.len(), "{found:?}, expected {expected:?}");
            }
            _ => assert_eq!(found.as_deref(), expected),
        }
    }

    #[test]
    fn seats_follow_demand_within_bounds() {
        check(100.0, &[(0.0, 10.0, 100.0), (0.0, 30.0, 100.0)], Some(&[25.0, 75.0]));
        check(100.0, &[(0.0, 10.0, 100.0), (0.0, 30.0, 50.0)], Some(&[50.0, 50.0]));
        check(100.0, &[(40.0, 40.0, 100.0), (0.0, 160.0, 200.0)], Some(&[40.0, 60.0]));
        check(10.0, &[(5.0, 5.0, 9.0), (5.0, 5.0, 9.0)], Some(&[5.0, 5.0]));
        check(10.0, &[(0.0, 0.0, 20.0), (0.0, 0.0, 20.0)], Some(&[5.0, 5.0]));
        check(10.0, &[(6.0, 6.0, 9.0), (5.0, 5.0, 9.0)], None);
        check(20.0, &[(0.0, 5.0, 9.0), (0.0, 5.0, 9.0)], None);
        check(10.0, &[], None);
    }

    proptest! {
        #[test]
        fn allocation_is_proportional_to_demand_within_the_bounds_of_each_class(
            parts in prop::collection::vec((0u32..50, 0u32..50, 0u32..200), 1..8),
            fraction in 0.0f64..=1.0,
        ) {
            let classes: Vec<Class> = parts
                .iter()
                .map(|(lower, more, room)| Class {
                    lower: f64::from(*lower),
                    target: f64::from(lower + more),
                    upper: f64::from(lower + room),
                })
                .collect();
            let (low, high): (f64, f64) =
                (classes.iter().map(|class| class.lower).sum(), classes.iter().map(|class| class.upper).sum());
            let sum = low + (high - low) * fraction;
            let (seats, proportion) = allocate(sum, &classes).expect("the sum is within the bounds");
            prop_assert!((seats.iter().sum::<f64>() - sum).abs() < 1e-3, "the seats do not add up");
            for (class, seats) in classes.iter().zip(seats) {
                prop_assert!(class.lower <= seats && seats <= class.upper, "a bound is broken");
                let fair = proportion * class.target.max(TARGET_MIN);
                let is_fair = (seats - fair).abs() < 1e-6;
                prop_assert!(is_fair || seats == class.lower && fair < seats || seats == class.upper && fair > seats);
            }
        }
    }
}
