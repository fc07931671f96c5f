//! The order of API versions by stability and number.

use std::cmp::Ordering;

/// Kubernetes' order of versions, the preferred one first: `v2`, `v1`, `v2beta1`, `v1beta2`,
/// `v1alpha1`, then all other names in alphabetical order
/// (`apimachinery/pkg/version.CompareKubeAwareVersionStrings`).
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (GA over beta over alpha), major, minor.
fn parse_version(text: &str) -> Option<(u8, u64, u64)> {
    let rest = text.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let major = number(major)?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    Some((stability, major, number(minor)?))
}

fn number(text: &str) -> Option<u64> {
    if text.starts_with('0') { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions =
            ["foo1", "v1alpha2", "v11alpha2", "v12alpha1", "v3beta1", "v10", "foo10", "v1", "v2", "v10beta3"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha2", "foo1", "foo10"]
        );
        for odd in ["v0", "v01", "v1beta", "v1gamma1", "1", "v", "v1beta0", "v1beta1x"] {
            assert_eq!(compare_versions("v1alpha1", odd), Ordering::Less, "{odd} is no Kubernetes version");
        }
    }
}
