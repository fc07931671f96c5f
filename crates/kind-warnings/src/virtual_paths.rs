//! Warnings about volumes whose files overwrite each other: two items have the same path, or the path of one item is a
//! directory of the other.
//!
//! Source: `warningsForOverlappingVirtualPaths` in `pkg/api/pod/warnings.go`.

use std::fmt;

use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_validation::{Object, child, given, items, objects, text};

use crate::Warnings;

/// The largest number of pairs of paths that are compared. Later paths are not compared. A pair of long paths counts
/// once more for each [`COMPARED_BYTES`].
const PATH_PAIRS_MAX: usize = 100_000;

/// The bytes of two paths whose comparison costs as much as a further pair.
const COMPARED_BYTES: usize = 64;

/// The path of a file in a volume, with the source of the file. `source` is empty if the volume has only one source.
#[derive(Clone, Copy)]
struct File<'a> {
    /// The path without slashes at its end.
    path: &'a str,
    source: Source<'a>,
}

impl<'a> File<'a> {
    fn new(path: &'a str, source: Source<'a>) -> Self {
        File { path: path.trim_end_matches('/'), source }
    }

    fn overlaps(self, other: File<'_>) -> bool {
        let (left, right) = (self.path, other.path);
        let (directory, path) = if left.len() <= right.len() { (left, right) } else { (right, left) };
        !directory.is_empty()
            && path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = quote(self.path);
        match self.source {
            Source::Only => write!(f, "{path}"),
            Source::Kind(kind) => write!(f, "{path} ({kind})"),
            Source::Named(kind, name) => write!(f, "{path} ({kind} {})", quote(name)),
        }
    }
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Only,
    Kind(&'static str),
    Named(&'static str, &'a str),
}

/// Adds the warnings of all volumes.
pub(crate) fn add_overlaps(spec: &Object, warnings: &mut Warnings) {
    let mut pairs = PATH_PAIRS_MAX;
    for (_, volume) in objects(spec, "volumes") {
        if warnings.is_full() {
            return;
        }
        let name = text(volume, "name");
        for (kind, member, reference) in
            [("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName"), ("DownwardAPI", "downwardAPI", "")]
        {
            let source = child(volume, member);
            if items(source, "items").len() < 2 {
                continue;
            }
            let files: Vec<File<'_>> = listed(source, Source::Only).collect();
            each_overlap(&files, &mut pairs, |file, earlier| {
                let name = quote(name);
                if reference.is_empty() {
                    warnings.add(format_args!("volume {name} ({kind}): overlapping paths: {file} with {earlier}"));
                } else {
                    let held = quote(text(source, reference));
                    warnings
                        .add(format_args!("volume {name} ({kind} {held}): overlapping paths: {file} with {earlier}"));
                }
                !warnings.is_full()
            });
        }
        if let Some(Value::Object(projected)) = given(volume, "projected") {
            add_projected(projected, name, &mut pairs, warnings);
        }
    }
}

fn add_projected(projected: &Object, volume: &str, pairs: &mut usize, warnings: &mut Warnings) {
    let mut files = Vec::new();
    for (_, source) in objects(projected, "sources") {
        if warnings.is_full() {
            return;
        }
        if source.values().all(Value::is_null) {
            warnings.add(format_args!("volume {} (Projected) has no sources provided", quote(volume)));
            continue;
        }
        add_files(source, &mut files);
    }
    each_overlap(&files, pairs, |file, earlier| {
        let volume = quote(volume);
        warnings.add(format_args!("volume {volume} (Projected): overlapping paths: {file} with {earlier}"));
        !warnings.is_full()
    });
}

/// Adds the files of one source of a projected volume.
fn add_files<'a>(source: &'a Object, files: &mut Vec<File<'a>>) {
    let member = |name: &str| given(source, name).and_then(Value::as_object);
    if let Some(map) = member("configMap").filter(|map| given(map, "items").is_some()) {
        files.extend(listed(map, Source::Named("ConfigMap", text(map, "name"))));
    } else if let Some(secret) = member("secret").filter(|secret| given(secret, "items").is_some()) {
        files.extend(listed(secret, Source::Named("Secret", text(secret, "name"))));
    } else if let Some(api) = member("downwardAPI").filter(|api| given(api, "items").is_some()) {
        files.extend(listed(api, Source::Kind("DownwardAPI")));
    } else if let Some(token) = member("serviceAccountToken") {
        files.push(File::new(text(token, "path"), Source::Kind("ServiceAccountToken")));
    } else if let Some(bundle) = member("clusterTrustBundle") {
        let name = if given(bundle, "name").is_some() { "name" } else { "signerName" };
        files.push(File::new(text(bundle, "path"), Source::Named("ClusterTrustBundle", text(bundle, name))));
    } else if let Some(certificate) = member("podCertificate") {
        for (name, kind) in [
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
            ("credentialBundlePath", "PodCertificate credential bundle"),
        ] {
            let path = text(certificate, name);
            if !path.is_empty() {
                files.push(File::new(path, Source::Kind(kind)));
            }
        }
    }
}

fn listed<'a>(holder: &'a Object, source: Source<'a>) -> impl Iterator<Item = File<'a>> {
    objects(holder, "items").map(move |(_, item)| File::new(text(item, "path"), source))
}

/// Calls `visit` for each file that overlaps an earlier one, until it returns false. `pairs` is what remains of
/// [`PATH_PAIRS_MAX`].
fn each_overlap<'a>(files: &[File<'a>], pairs: &mut usize, mut visit: impl FnMut(File<'a>, File<'a>) -> bool) {
    for (position, file) in files.iter().enumerate() {
        for earlier in files.iter().take(position) {
            if *pairs == 0 {
                return;
            }
            *pairs = pairs.saturating_sub(1 + file.path.len().min(earlier.path.len()) / COMPARED_BYTES);
            if file.overlaps(*earlier) && !visit(*file, *earlier) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'a>(paths: &[&'a str]) -> Vec<File<'a>> {
        paths.iter().map(|path| File::new(path, Source::Only)).collect()
    }

    #[test]
    fn paths_overlap_if_they_are_equal_or_one_is_a_directory_of_the_other() {
        for (left, right, expected) in [
            ("a", "a", true),
            ("a//", "a", true),
            ("a", "a/b", true),
            ("a/", "a/b", true),
            ("a", "ab", false),
            ("a", "b", false),
            ("", "a", false),
            ("/", "/a", false),
        ] {
            let (left, right) = (File::new(left, Source::Only), File::new(right, Source::Only));
            assert_eq!(left.overlaps(right), expected, "{left} {right}");
            assert_eq!(right.overlaps(left), expected, "{right} {left}");
        }
    }

    #[test]
    fn comparison_ends_when_the_visitor_wants_no_more() {
        let (mut pairs, mut visits) = (PATH_PAIRS_MAX, 0);
        each_overlap(&files(&["a"; 100]), &mut pairs, |_, _| {
            visits += 1;
            visits < 2
        });
        assert_eq!((visits, PATH_PAIRS_MAX - pairs), (2, 2));
    }

    #[test]
    fn pair_of_long_paths_counts_as_many_pairs() {
        let long = "a".repeat(10 * COMPARED_BYTES);
        for (paths, expected) in [(["a", "b"], 1), (["a", &long], 1), ([&long, &long], 11)] {
            let mut pairs = PATH_PAIRS_MAX;
            each_overlap(&files(&paths), &mut pairs, |_, _| true);
            assert_eq!(PATH_PAIRS_MAX - pairs, expected);
        }
        let mut pairs = 5;
        each_overlap(&files(&[long.as_str(); 10]), &mut pairs, |_, _| true);
        assert_eq!(pairs, 0);
    }
}
