package thermocline.interop.cluster;

import java.lang.reflect.Proxy;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationStats;
import org.apache.bookkeeper.stats.Counter;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.bookkeeper.versioning.Versioned;

/** BookKeeper's own auditor and replication worker, as they run beside a cluster: a full check of all ledgers every second. */
public final class Repair implements AutoCloseable {
    private static final Duration CHECKED = Duration.ofSeconds(60);

    private final AtomicLong copied = new AtomicLong();
    private final MetadataBookieDriver driver;
    private final LedgerUnderreplicationManager marks;
    private final LedgerManager ledgers;
    private final AutoRecoveryMain recovery;

    /** Starts both for {@code cluster}; {@code lost} is how long a bookie may be away before its ledgers are copied. */
    public Repair(Cluster cluster, Duration lost) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(cluster.metadata());
        configuration.setAllowLoopback(true);
        configuration.setAdvertisedAddress("127.0.0.1");
        configuration.setAuditorPeriodicCheckInterval(1);
        configuration.setLostBookieRecoveryDelay((int) lost.toSeconds());
        configuration.setRwRereplicateBackoffMs(1000);
        driver = MetadataDrivers.getBookieDriver(URI.create(cluster.metadata()));
        driver.initialize(configuration, NullStatsLogger.INSTANCE);
        marks = driver.getLedgerManagerFactory().newLedgerUnderreplicationManager();
        ledgers = driver.getLedgerManagerFactory().newLedgerManager();
        recovery = new AutoRecoveryMain(configuration, new Copies());
        recovery.start();
    }

    /** Statistics, of which those count that tell of entries copied to bookies. */
    private final class Copies extends NullStatsLogger {
        @Override
        public StatsLogger scope(String name) {
            return this;
        }

        @Override
        public Counter getCounter(String name) {
            if (!name.equals(ReplicationStats.NUM_ENTRIES_WRITTEN)) {
                return super.getCounter(name);
            }
            return (Counter) Proxy.newProxyInstance(Counter.class.getClassLoader(), new Class<?>[] {Counter.class},
                (proxy, method, arguments) -> switch (method.getName()) {
                    case "inc" -> {
                        copied.incrementAndGet();
                        yield null;
                    }
                    case "addCount" -> {
                        copied.addAndGet((long) arguments[0]);
                        yield null;
                    }
                    case "get" -> copied.get();
                    default -> throw new UnsupportedOperationException(method.getName());
                });
        }
    }

    /** Entries that were copied since the start. */
    public long copied() {
        return copied.get();
    }

    /** Waits until a check of all ledgers has ended that began after this call. */
    public void awaitFullCheck() throws Exception {
        // The one that is under way may have passed by the ledgers in question.
        for (int round = 0; round < 2; round++) {
            long before = marks.getCheckAllLedgersCTime();
            Waiting.until("the auditor has checked all ledgers", CHECKED, () -> marks.getCheckAllLedgersCTime() > before);
        }
    }

    /** The ledgers that are marked as lacking copies. */
    public List<Long> marked() {
        List<Long> found = new ArrayList<>();
        Iterator<UnderreplicatedLedger> all = marks.listLedgersToRereplicate(null);
        all.forEachRemaining(ledger -> found.add(ledger.getLedgerId()));
        return found;
    }

    /** A ledger's metadata with its version, which changes with every write of it. */
    public Versioned<LedgerMetadata> metadata(long ledger) throws Exception {
        return ledgers.readLedgerMetadata(ledger).get(10, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws Exception {
        recovery.shutdown();
        ledgers.close();
        marks.close();
        driver.close();
    }
}
