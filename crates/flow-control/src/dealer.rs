//! [`Dealer`]: shuffle sharding (`apiserver/pkg/util/shufflesharding`). A dealer deals each flow a small hand of
//! queues, so that two flows rarely share all of their queues.

/// The largest hand. A larger hand needs more than 60 bits of the hash for any deck.
pub(crate) const HAND_MAX: usize = 15;
/// The number of bits of a hash that a hand may use (`MaxHashBits`). With more bits, some cards would be dealt more
/// often.
const HASH_BITS_MAX: f64 = 60.0;

/// Deals hands of `hand` different cards from a deck of `deck` cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dealer {
    deck: u64,
    hand: usize,
}

impl Dealer {
    /// Creates a dealer. `None` if the hand is empty, larger than the deck, or needs more bits than a hash has
    /// (`NewDealer`).
    pub(crate) fn new(deck: usize, hand: usize) -> Option<Self> {
        let bits = ((deck as f64).log2() * hand as f64).ceil();
        (hand >= 1 && hand <= deck && hand <= HAND_MAX && bits <= HASH_BITS_MAX)
            .then_some(Dealer { deck: deck as u64, hand })
    }

    /// Deals the hand of a flow into `cards`, and returns the part that was used.
    pub(crate) fn deal(self, mut hash: u64, cards: &mut [usize; HAND_MAX]) -> &[usize] {
        for (position, card) in cards[..self.hand].iter_mut().enumerate() {
            let remaining = self.deck - position as u64;
            *card = (hash % remaining) as usize;
            hash /= remaining;
        }
        // Each remainder is a position among the cards that are left. From the last to the first, so that the earlier
        // remainders are still unchanged.
        for position in (1..self.hand).rev() {
            let mut card = cards[position];
            for earlier in (0..position).rev() {
                if card >= cards[earlier] {
                    card += 1;
                }
            }
            cards[position] = card;
        }
        &cards[..self.hand]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn dealer_accepts_only_hands_that_a_hash_can_deal() {
        for (deck, hand, valid) in [
            (64, 8, true),
            (128, 6, true),
            (1, 1, true),
            (1 << 20, 3, true),
            (0, 0, false),
            (8, 0, false),
            (4, 5, false),
            (128, 9, false),
            (2, 16, false),
        ] {
            assert_eq!(Dealer::new(deck, hand).is_some(), valid, "deck {deck}, hand {hand}");
        }
    }

    #[test]
    fn dealt_hands_equal_the_hands_of_upstream() {
        // The expected hands follow from the definition: the mixed-radix digits of the hash, then the positions among
        // the cards that are left.
        let mut cards = [0; HAND_MAX];
        assert_eq!(Dealer::new(6, 6).unwrap().deal(0, &mut cards), [0, 1, 2, 3, 4, 5]);
        assert_eq!(Dealer::new(6, 6).unwrap().deal(719, &mut cards), [5, 4, 3, 2, 1, 0]);
        assert_eq!(Dealer::new(128, 3).unwrap().deal(128 * 127 * 5 + 128 * 5 + 5, &mut cards), [5, 6, 7]);
    }

    #[test]
    fn dealer_deals_every_hand_of_a_small_deck_equally_often() {
        let dealer = Dealer::new(5, 3).unwrap();
        let mut hands: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        for hash in 0..60 * 7 {
            let mut cards = [0; HAND_MAX];
            *hands.entry(dealer.deal(hash, &mut cards).to_vec()).or_default() += 1;
        }
        assert_eq!(hands.len(), 60, "five cards have 60 ordered hands of three");
        assert!(hands.values().all(|times| *times == 7));
        assert!(hands.keys().all(|hand| hand[0] != hand[1] && hand[1] != hand[2] && hand[0] != hand[2]));
    }
}
