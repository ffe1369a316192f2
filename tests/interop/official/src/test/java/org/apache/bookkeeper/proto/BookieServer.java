package org.apache.bookkeeper.proto;

import io.netty.buffer.ByteBufAllocator;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.UnknownHostException;
import java.util.Set;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.UncleanShutdownDetection;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.stats.StatsLogger;

/**
 * Stands before BookKeeper's class of this name on the class path of its tests: what they start is a process of
 * {@code thermocline bookie}. The bookie that they made is left unused.
 *
 * <p>A bookie that a test has written itself, to misbehave, is served as BookKeeper would, in this JVM, beside the processes.
 */
public class BookieServer {
    /** The classes of bookies that behave as bookies do. */
    private static final Set<String> PLAIN = Set.of(
        "org.apache.bookkeeper.bookie.BookieImpl",
        "org.apache.bookkeeper.bookie.ReadOnlyBookie",
        "org.apache.bookkeeper.bookie.TestBookieImpl");

    private final ServerConfiguration configuration;
    private final Served served;

    /** As BookKeeper's. */
    public BookieServer(ServerConfiguration configuration, Bookie bookie, StatsLogger stats, ByteBufAllocator allocator,
            UncleanShutdownDetection detection) throws Exception {
        this.configuration = configuration;
        if (configuration.getBookiePort() == 0) {
            try (ServerSocket socket = new ServerSocket(0)) {
                configuration.setBookiePort(socket.getLocalPort());
            }
        }
        if (PLAIN.contains(bookie.getClass().getName())) {
            // Its state would be registered again after a lost session.
            bookie.shutdown();
            served = new ProcessBookie(configuration);
        } else {
            served = new OwnBookie(configuration, bookie, stats, allocator);
        }
    }

    /** As BookKeeper's. */
    public static BookieServer newBookieServer(ServerConfiguration configuration, Bookie bookie, StatsLogger stats,
            ByteBufAllocator allocator, UncleanShutdownDetection detection) throws Exception {
        return new BookieServer(configuration, bookie, stats, allocator, detection);
    }

    /** What serves behind this face. */
    interface Served {
        void start() throws IOException, InterruptedException;

        void suspend();

        void resume();

        void shutdown();

        boolean isRunning();

        Bookie bookie();

        BookieRequestProcessor processor();
    }

    /** As BookKeeper's. */
    public void start() throws IOException, InterruptedException {
        served.start();
    }

    /** As BookKeeper's. */
    public void suspendProcessing() {
        served.suspend();
    }

    /** As BookKeeper's. */
    public void resumeProcessing() {
        served.resume();
    }

    /** As BookKeeper's. */
    public synchronized void shutdown() {
        served.shutdown();
    }

    /** As BookKeeper's. */
    public boolean isRunning() {
        return served.isRunning();
    }

    /** As BookKeeper's. */
    public boolean isBookieRunning() {
        return served.isRunning();
    }

    /** The bookie; that of a process can be asked for little. */
    public Bookie getBookie() {
        return served.bookie();
    }

    /** As BookKeeper's. */
    public BookieRequestProcessor getBookieRequestProcessor() {
        return served.processor();
    }

    /** As BookKeeper's. */
    public BookieSocketAddress getLocalAddress() throws UnknownHostException {
        return BookieImpl.getBookieAddress(configuration);
    }

    /** As BookKeeper's. */
    public BookieId getBookieId() throws UnknownHostException {
        return BookieImpl.getBookieId(configuration);
    }

    /** Counts a bookie, for the notes of the run. */
    static void count(String whose) {
        String name = "thermocline.bookies." + whose;
        synchronized (PLAIN) {
            System.setProperty(name, Integer.toString(Integer.getInteger(name, 0) + 1));
        }
    }

    @Override
    public String toString() {
        return "bookie at port " + configuration.getBookiePort();
    }
}
