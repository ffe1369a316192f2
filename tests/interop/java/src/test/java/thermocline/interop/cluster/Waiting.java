package thermocline.interop.cluster;

import java.time.Duration;

/** Waits on conditions, each with a deadline. */
public final class Waiting {
    private static final Duration PAUSE = Duration.ofMillis(20);

    private Waiting() {}

    /** Something that is true sooner or later. */
    @FunctionalInterface
    public interface Condition {
        /** Whether it has come true. */
        boolean holds() throws Exception;
    }

    /**
     * Asks again and again until {@code condition} holds.
     *
     * @throws AssertionError when it does not within {@code limit}; {@code what} says what was waited for
     */
    public static void until(String what, Duration limit, Condition condition) throws Exception {
        long deadline = System.nanoTime() + limit.toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + limit.toSeconds() + " s: " + what);
            }
            Thread.sleep(PAUSE.toMillis());
        }
    }
}
