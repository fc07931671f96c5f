//! [`Demand`]: the number of seats that a level could use, as average and deviation over time
//! (`flowcontrol/fairqueuing/integrator.go`, `seatDemandStats` in `flowcontrol/apf_controller.go`).

use std::time::Instant;

/// The weight of the previous smoothed demand when the demand falls, per adjustment period
/// (`seatDemandSmoothingCoefficient`).
const SMOOTHING: f64 = 0.977;

/// Integrates the demand of a level over time.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    at: Instant,
    seats: f64,
    seconds: f64,
    integral: f64,
    square_integral: f64,
    peak: f64,
    statistics: DemandStatistics,
}

/// The demand of a level over the last period of adjustment, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemandStatistics {
    /// The average, weighted by time.
    pub average: f64,
    /// The standard deviation, weighted by time.
    pub deviation: f64,
    /// The largest demand.
    pub high_watermark: u64,
    /// The average plus the deviation, smoothed: increases take effect immediately, decreases gradually.
    pub smoothed: f64,
}

impl Demand {
    pub(crate) fn new(now: Instant) -> Self {
        let statistics = DemandStatistics::default();
        Demand { at: now, seats: 0.0, seconds: 0.0, integral: 0.0, square_integral: 0.0, peak: 0.0, statistics }
    }

    /// Records the demand from `now` on.
    pub(crate) fn set(&mut self, now: Instant, seats: u64) {
        self.advance(now);
        self.seats = seats as f64;
        self.peak = self.peak.max(self.seats);
    }

    fn advance(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.seconds += seconds;
        self.integral += self.seats * seconds;
        self.square_integral += self.seats * self.seats * seconds;
    }

    /// Ends a period of adjustment.
    pub(crate) fn end_period(&mut self, now: Instant) -> DemandStatistics {
        self.advance(now);
        self.statistics.high_watermark = self.peak.round() as u64;
        if self.seconds > 0.0 {
            let average = self.integral / self.seconds;
            let deviation = (self.square_integral / self.seconds - average * average).max(0.0).sqrt();
            let envelope = average + deviation;
            let decayed = SMOOTHING * self.statistics.smoothed + (1.0 - SMOOTHING) * envelope;
            self.statistics =
                DemandStatistics { average, deviation, smoothed: envelope.max(decayed), ..self.statistics };
        }
        (self.seconds, self.integral, self.square_integral, self.peak) = (0.0, 0.0, 0.0, self.seats);
        self.statistics
    }

    /// The statistics of the last period that ended.
    pub(crate) fn statistics(&self) -> DemandStatistics {
        self.statistics
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn demand_statistics_are_weighted_by_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut demand = Demand::new(start);
        demand.set(at(0), 10);
        demand.set(at(5), 0);
        let first = demand.end_period(at(10));
        assert_eq!((first.average, first.deviation, first.high_watermark), (5.0, 5.0, 10));
        assert_eq!(first.smoothed, 10.0);
        let second = demand.end_period(at(20));
        assert_eq!((second.average, second.high_watermark), (0.0, 0), "the peak of a period does not last");
        assert!((second.smoothed - 9.77).abs() < 1e-9, "the smoothed demand falls slowly: {}", second.smoothed);
    }

    #[test]
    fn period_without_duration_keeps_the_demand_statistics() {
        let start = Instant::now();
        let mut demand = Demand::new(start);
        demand.set(start, 3);
        let statistics = demand.end_period(start);
        assert_eq!((statistics.average, statistics.smoothed, statistics.high_watermark), (0.0, 0.0, 3));
    }
}
