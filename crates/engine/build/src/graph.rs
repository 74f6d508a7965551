//! Which stages there are, and which ones the target needs.

use std::collections::BTreeSet;

use atoll_core::error::shorten;
use atoll_core::{Code, Error, Result};

use crate::place::Place;
use crate::recipe::Recipe;

/// What a stage begins with, or a `COPY --from` takes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// An earlier stage.
    Stage(usize),
    /// An image.
    Image(String),
}

/// The stages that a target needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The stage that is wanted.
    pub target: usize,
    /// What each stage of the recipe begins with.
    pub bases: Vec<Origin>,
    /// The stages that are needed, in an order in which each comes after what it needs.
    pub needed: Vec<usize>,
}

impl Graph {
    /// Looks stages up. `bases` are the names behind `FROM` with variables put in.
    ///
    /// # Errors
    /// [`Code::BuildFileInvalid`] for a stage that needs itself or a later one;
    /// [`Code::InvalidArgument`] when the target does not exist.
    pub fn new(recipe: &Recipe, bases: &[String], target: Option<&str>) -> Result<Self> {
        let mut origins = Vec::with_capacity(recipe.stages.len());
        for (index, base) in bases.iter().enumerate() {
            let place = recipe.stages[index].place;
            let named = stage_named(recipe, base);
            origins.push(match named {
                Some(earlier) if earlier < index => Origin::Stage(earlier),
                // A stage may have the name of the image that it begins with.
                Some(_) if base.contains(['/', ':', '@']) => Origin::Image(base.clone()),
                Some(later) if later > index => return Err(circular(place, base)),
                Some(_) | None => Origin::Image(base.clone()),
            });
        }
        let target = find_target(recipe, target)?;
        let mut graph = Self { target, bases: origins, needed: Vec::new() };
        graph.needed = graph.needs(recipe)?;
        Ok(graph)
    }

    fn needs(&self, recipe: &Recipe) -> Result<Vec<usize>> {
        let mut needed = BTreeSet::new();
        let mut open = vec![self.target];
        while let Some(index) = open.pop() {
            if !needed.insert(index) {
                continue;
            }
            if let Origin::Stage(base) = self.bases[index] {
                open.push(base);
            }
            for instruction in &recipe.stages[index].instructions {
                for from in instruction.action.takes_from() {
                    if let Origin::Stage(stage) = source(recipe, index, instruction.place, from)? {
                        open.push(stage);
                    }
                }
            }
        }
        // References lead backwards only, so the order of the text is an order that works.
        Ok(needed.into_iter().collect())
    }
}

/// What `COPY --from=` means in a stage.
///
/// # Errors
/// [`Code::BuildFileInvalid`] for the stage itself or a later one.
pub fn source(recipe: &Recipe, stage: usize, place: Place, from: &str) -> Result<Origin> {
    let index = match stage_named(recipe, from) {
        Some(index) => Some(index),
        None => from.parse::<usize>().ok(),
    };
    match index {
        None => Ok(Origin::Image(from.to_owned())),
        Some(index) if index < stage => Ok(Origin::Stage(index)),
        Some(_) => Err(circular(place, from)),
    }
}

fn circular(place: Place, name: &str) -> Error {
    place
        .invalid(format_args!(
            "'{}' is this stage or a later one: stages cannot need each other in a circle",
            shorten(name)
        ))
        .hint("take from stages that come before")
}

fn stage_named(recipe: &Recipe, name: &str) -> Option<usize> {
    let name = name.to_ascii_lowercase();
    recipe.stages.iter().position(|stage| stage.name.as_deref() == Some(&name))
}

fn find_target(recipe: &Recipe, target: Option<&str>) -> Result<usize> {
    let last = recipe.stages.len().saturating_sub(1);
    let Some(target) = target else { return Ok(last) };
    let index = stage_named(recipe, target).or_else(|| target.parse().ok().filter(|index| *index <= last));
    index.ok_or_else(|| {
        let names: Vec<_> = recipe.stages.iter().filter_map(|stage| stage.name.as_deref()).collect();
        Error::new(Code::InvalidArgument, format!("target: there is no stage '{}'", shorten(target)))
            .hint(format!("stages with a name: {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(text: &str, target: Option<&str>) -> Result<Graph> {
        let recipe = crate::parse(text)?;
        let bases: Vec<_> = recipe.stages.iter().map(|stage| stage.base.clone()).collect();
        Graph::new(&recipe, &bases, target)
    }

    #[test]
    fn only_what_is_needed() {
        let text = "FROM x AS a\nFROM x AS unused\nFROM a AS b\nFROM y\nCOPY --from=b /x /\nCOPY --from=0 /x /\n\
                    COPY --from=z:1 /x /\nFROM y AS c\nRUN --mount=from=b,target=/b x\n";
        assert_eq!(graph(text, Some("c")).unwrap().needed, [0, 2, 4]);
        let all = graph(text, Some("3")).unwrap();
        assert_eq!((all.target, &all.needed[..]), (3, &[0, 2, 3][..]));
        assert_eq!(all.bases[2], Origin::Stage(0));
        assert_eq!(graph(text, Some("B")).unwrap().needed, [0, 2]);
        assert_eq!(graph(text, Some("1")).unwrap().needed, [1]);
        assert_eq!(graph(text, Some("nope")).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn circles_are_refused() {
        for text in [
            "FROM x AS a\nCOPY --from=a /x /",
            "FROM b AS a\nFROM x AS b",
            "FROM x AS a\nCOPY --from=b /x /\nFROM a AS b",
            "FROM x\nCOPY --from=1 /x /\nFROM y",
        ] {
            let error = graph(text, Some("0")).unwrap_err();
            assert!(error.message.contains("circle"), "{text}: {error}");
        }
        // An image of the stage's own name is an image.
        assert_eq!(graph("FROM python AS python", None).unwrap().bases, [Origin::Image("python".into())]);
    }
}
