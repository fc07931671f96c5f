//! Finds the random tests, and sets their seeds.
//!
//! Repeatable results need a fixed seed, but a fixed seed always explores the same cases. Therefore `test` runs all
//! tests from [`FIXED_SEED`], and `ci` runs the random tests again from a seed of the commit. Each commit explores
//! other cases, and a rerun of a commit explores the same cases.

use std::collections::BTreeSet;

use crate::failure::Outcome;
use crate::process::Run;
use crate::tidy::Tree;
use crate::tools;

/// The seed of every random test when no seed is given.
pub(crate) const FIXED_SEED: u64 = 1;

/// Number of simulations that run from a seed other than [`FIXED_SEED`].
const SIMULATIONS: u64 = 24;

/// Number of hexadecimal digits of the commit that form its seed.
const COMMIT_DIGITS: usize = 12;

/// The texts that mark a source file with random tests: proptest's macro, or an environment variable of a seed.
const MARKS: [&str; 3] = ["proptest! {", "\"LISTWATCH_PARAMETERS_SEED\"", "\"LISTWATCH_SIM_SEED\""];

/// Makes every random test of `run` start from `seed`.
pub(crate) fn seeded(run: Run, seed: u64) -> Run {
    let text = seed.to_string();
    let run = run.env("PROPTEST_RNG_SEED", &text).env("LISTWATCH_PARAMETERS_SEED", &text);
    if seed == FIXED_SEED {
        return run;
    }
    run.env("LISTWATCH_SIM_SEED", &text).env("LISTWATCH_SIM_SEEDS", SIMULATIONS.to_string())
}

/// The commit that is checked out, and its seed.
pub(crate) fn commit_seed() -> Outcome<(String, u64)> {
    let commit = Run::new("git").args(["rev-parse", "HEAD"]).dir(&tools::root()).text()?.trim().to_owned();
    let seed = seed_of(&commit)?;
    Ok((commit, seed))
}

fn seed_of(commit: &str) -> Outcome<u64> {
    let digits = commit.get(..COMMIT_DIGITS).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.ok_or_else(|| format!("`{commit}` is not the name of a commit").into())
}

/// The targets that hold random tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RandomTests {
    /// Packages with modules of their library, such as `("listwatch-wire", "frame")`; the module of a
    /// `lib.rs` is empty.
    modules: BTreeSet<(String, String)>,
    /// Packages with programs of integration tests and the modules in them, such as
    /// `("listwatch-cacher", "it", "model")`.
    programs: BTreeSet<(String, String, String)>,
}

impl RandomTests {
    /// Finds the random tests in the source.
    pub(crate) fn find() -> Outcome<Self> {
        Ok(Self::find_in(&Tree::read(&tools::root())?))
    }

    fn find_in(tree: &Tree) -> Self {
        let mut found = Self::default();
        for (path, text) in &tree.files {
            let mut parts = path.strip_prefix("crates/").into_iter().flat_map(|rest| rest.splitn(3, '/'));
            let (Some(folder), Some(kind), Some(file)) = (parts.next(), parts.next(), parts.next()) else { continue };
            let Some(package) = tree.package(&format!("crates/{folder}/Cargo.toml")) else { continue };
            let Some(file) = file.strip_suffix(".rs").filter(|_| MARKS.iter().any(|mark| text.contains(mark))) else {
                continue;
            };
            match kind {
                "src" => {
                    let module = tree.module_by_path(path).unwrap_or_else(|| module_of(file));
                    found.modules.insert((package.to_owned(), module));
                }
                "tests" => {
                    let Some((program, module)) = file.split_once('/') else { continue };
                    let module = module.split('/').next().unwrap_or(module);
                    found.programs.insert((package.to_owned(), program.to_owned(), module.to_owned()));
                }
                _ => {}
            }
        }
        found
    }

    /// Formats the random tests as an expression for nextest's `-E`.
    pub(crate) fn expression(&self) -> String {
        let module = |(package, module): &(String, String)| match module.as_str() {
            "" => format!("(package(={package}) & kind(=lib))"),
            module => format!("(package(={package}) & kind(=lib) & test(/^{module}::/))"),
        };
        let program = |(package, program, module): &(String, String, String)| {
            format!("(package(={package}) & binary(={program}) & test(/^{module}::/))")
        };
        let all: Vec<_> = self.modules.iter().map(module).chain(self.programs.iter().map(program)).collect();
        all.join(" + ")
    }

    /// Returns the arguments of two calls of `cargo test`: one for libraries, with filters, and one for integration
    /// tests.
    pub(crate) fn cargo_test_arguments(&self) -> [Vec<String>; 2] {
        let mut libraries = vec!["--lib".to_owned(), "--".to_owned()];
        libraries.extend(self.modules.iter().map(|(_, module)| format!("{module}::")));
        let programs: BTreeSet<_> = self.programs.iter().map(|(_, program, _)| program).collect();
        let modules: BTreeSet<_> = self.programs.iter().map(|(.., module)| format!("{module}::")).collect();
        let mut integration: Vec<_> =
            programs.into_iter().flat_map(|program| ["--test".to_owned(), program.clone()]).collect();
        integration.push("--".to_owned());
        integration.extend(modules);
        [libraries, integration]
    }
}

/// The module of a library's source file, given below `src` and without its suffix.
fn module_of(file: &str) -> String {
    let module = file.strip_suffix("/mod").unwrap_or(file).replace('/', "::");
    if module == "lib" { String::new() } else { module }
}

impl Tree {
    /// The module that another file of the library names with `#[path = "…"]`, if one does.
    fn module_by_path(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        let attribute = format!("#[path = \"{name}\"]");
        let siblings =
            self.files.iter().filter(|(other, _)| other.rsplit_once('/').is_some_and(|(at, _)| at == folder));
        siblings.into_iter().find_map(|(other, text)| {
            let mut rest = text.lines().skip_while(|line| line.trim() != attribute).skip(1);
            let declared = rest.next()?.trim().strip_suffix(';')?.rsplit(' ').next()?;
            let parent = module_of(other.split_once("/src/")?.1.strip_suffix(".rs")?);
            Some(format!("{parent}::{declared}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{RandomTests, seed_of};
    use crate::tidy::Tree;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Tree { root: crate::tools::root(), files: files.iter().map(file).collect() }
    }

    #[test]
    fn random_tests_are_found_by_marks_in_their_source() {
        let found = RandomTests::find_in(&tree(&[
            ("crates/x/Cargo.toml", "[package]\nname = \"listwatch-x\"\n"),
            ("crates/x/src/a/mod.rs", "proptest! {}"),
            ("crates/x/src/a/b.rs", "proptest! {}"),
            ("crates/x/src/plain.rs", "fn proptest() {}\n#[cfg(test)]\n#[path = \"plain_tests.rs\"]\nmod tests;\n"),
            ("crates/x/src/plain_tests.rs", "proptest! {}"),
            ("crates/x/tests/it/model.rs", "proptest! {}"),
            ("crates/x/tests/it/model/part.rs", "proptest! {}"),
            ("crates/x/tests/it/seeds.rs", "var(\"LISTWATCH_SIM_SEED\")"),
            ("docs/a.rs", "proptest! {}"),
        ]));
        assert_eq!(
            found.expression(),
            "(package(=listwatch-x) & kind(=lib) & test(/^a::/)) + (package(=listwatch-x) & kind(=lib) & test(/^a::b::/)) \
             + (package(=listwatch-x) & kind(=lib) & test(/^plain::tests::/)) + (package(=listwatch-x) & binary(=it) & test(/^model::/)) \
             + (package(=listwatch-x) & binary(=it) & test(/^seeds::/))"
        );
        assert_eq!(
            found.cargo_test_arguments(),
            [vec!["--lib", "--", "a::", "a::b::", "plain::tests::"], vec!["--test", "it", "--", "model::", "seeds::"]]
        );
    }

    #[test]
    fn this_workspace_has_random_tests_of_each_kind() {
        let found = RandomTests::find().unwrap().expression();
        for part in [
            "package(=listwatch-cacher) & binary(=it) & test(/^model::/)",
            "test(/^seeds::/)",
            "test(/^parameters::/)",
            "package(=listwatch-work-queue) & kind(=lib) & test(/^tests::/)",
        ] {
            assert!(found.contains(part), "{part} is missing in {found}");
        }
    }

    #[test]
    fn seed_of_a_commit_is_its_first_digits() {
        assert_eq!(seed_of("00000000001f3eb1ae9816"), Ok(0x1f));
        assert_eq!(seed_of("1ae9816"), Err("`1ae9816` is not the name of a commit".into()));
    }
}
