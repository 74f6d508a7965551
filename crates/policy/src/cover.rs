//! Which rules are needed.

/// Of rules that only allow, each of which covers some things: leaves out rules without which everything is still covered,
/// those that cover the least first. Gives the places of those that stay, in order.
pub(crate) fn needed(covers: &[Vec<usize>], things: usize) -> Vec<usize> {
    let mut times = vec![0_usize; things];
    for covered in covers {
        for thing in covered {
            times[*thing] += 1;
        }
    }
    let mut order: Vec<usize> = (0..covers.len()).collect();
    order.sort_by_key(|rule| covers[*rule].len());
    let mut stays = vec![true; covers.len()];
    for rule in order {
        if covers[rule].iter().all(|thing| times[*thing] > 1) {
            stays[rule] = false;
            for thing in &covers[rule] {
                times[*thing] -= 1;
            }
        }
    }
    (0..covers.len()).filter(|rule| stays[*rule]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_adds_nothing_goes() {
        assert_eq!(needed(&[vec![0], vec![0, 1], vec![1], vec![]], 2), [1]);
        assert_eq!(needed(&[vec![0, 1], vec![1, 2], vec![2, 3]], 4), [0, 2]);
        assert_eq!(needed(&[vec![0], vec![1]], 2), [0, 1]);
        assert_eq!(needed(&[], 0), Vec::<usize>::new());
    }
}
