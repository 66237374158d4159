! Pushing frames from Fortran: bind(C) interfaces to what bodhi.h says of bodhi_push_open() and what follows it.
! Compile this file along with your own: its path is what `himach cache config --fortran` prints.
module bodhi
  use, intrinsic :: iso_c_binding
  implicit none
  private

  public :: bodhi_frame, bodhi_push_options, bodhi_push_facts
  public :: bodhi_push_open, bodhi_push, bodhi_push_flush, bodhi_push_query, bodhi_push_close, bodhi_push_abandon
  public :: bodhi_slice_options, bodhi_push_open_slices, bodhi_push_slice
  public :: bodhi_error

  integer(c_int), parameter, public :: BODHI_OK = 0

  ! Arrays are c_loc() of real(c_float) arrays (3, n_atoms), or c_null_ptr; the box is one of 6.
  type, bind(c) :: bodhi_frame
    integer(c_int64_t) :: number = 0
    real(c_double) :: time = 0
    integer(c_int64_t) :: n_atoms = 0
    type(c_ptr) :: positions = c_null_ptr
    type(c_ptr) :: velocities = c_null_ptr
    type(c_ptr) :: forces = c_null_ptr
    type(c_ptr) :: box = c_null_ptr
    integer(c_int32_t) :: kind = 0
    integer(c_int32_t) :: reason = 0
    type(c_ptr) :: ids = c_null_ptr
  end type bodhi_frame

  type, bind(c) :: bodhi_push_options
    type(c_ptr) :: key_file = c_null_ptr
    integer(c_int32_t) :: durable = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int64_t) :: batch_bytes = 0
    type(c_funptr) :: interrupted = c_null_funptr
    type(c_ptr) :: identity = c_null_ptr
  end type bodhi_push_options

  type, bind(c) :: bodhi_push_facts
    integer(c_int64_t) :: acknowledged, in_flight, given_again, servers_up
  end type bodhi_push_facts

  type, bind(c) :: bodhi_slice_options
    integer(c_int64_t) :: n_atoms = 0
    integer(c_int64_t) :: rank = 0
    type(c_ptr) :: store = c_null_ptr
    integer(c_int64_t) :: quota = 0
    type(c_ptr) :: launch = c_null_ptr
  end type bodhi_slice_options

  interface
    ! servers: c_loc() of an array of n c_ptr to texts that end with c_null_char, as all texts here do.
    integer(c_int) function bodhi_push_open(servers, n, dataset, generation, generation_bytes, options, pusher) bind(c)
      import :: c_int, c_ptr, c_char, c_size_t, bodhi_push_options
      type(c_ptr), value :: servers
      integer(c_int), value :: n
      character(kind=c_char), intent(in) :: dataset(*)
      type(c_ptr), value :: generation
      integer(c_size_t), value :: generation_bytes
      type(bodhi_push_options), intent(in) :: options
      type(c_ptr), intent(out) :: pusher
    end function bodhi_push_open

    integer(c_int) function bodhi_push(pusher, frame) bind(c)
      import :: c_int, c_ptr, bodhi_frame
      type(c_ptr), value :: pusher
      type(bodhi_frame), intent(in) :: frame
    end function bodhi_push

    ! As bodhi_push_open(); with n = 0, and servers c_null_ptr, the slices go to the store alone.
    integer(c_int) function bodhi_push_open_slices(servers, n, dataset, generation, generation_bytes, options, slices, &
                                                   pusher) bind(c)
      import :: c_int, c_ptr, c_char, c_size_t, bodhi_push_options, bodhi_slice_options
      type(c_ptr), value :: servers
      integer(c_int), value :: n
      character(kind=c_char), intent(in) :: dataset(*)
      type(c_ptr), value :: generation
      integer(c_size_t), value :: generation_bytes
      type(bodhi_push_options), intent(in) :: options
      type(bodhi_slice_options), intent(in) :: slices
      type(c_ptr), intent(out) :: pusher
    end function bodhi_push_open_slices

    ! ids(i) is which atom of the frame, counted from 0, has the i-th vectors.
    integer(c_int) function bodhi_push_slice(pusher, frame, ids) bind(c)
      import :: c_int, c_int64_t, c_ptr, bodhi_frame
      type(c_ptr), value :: pusher
      type(bodhi_frame), intent(in) :: frame
      integer(c_int64_t), intent(in) :: ids(*)
    end function bodhi_push_slice

    integer(c_int) function bodhi_push_flush(pusher) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: pusher
    end function bodhi_push_flush

    subroutine bodhi_push_query(pusher, facts) bind(c)
      import :: c_ptr, bodhi_push_facts
      type(c_ptr), value :: pusher
      type(bodhi_push_facts), intent(out) :: facts
    end subroutine bodhi_push_query

    integer(c_int) function bodhi_push_close(pusher) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: pusher
    end function bodhi_push_close

    subroutine bodhi_push_abandon(pusher) bind(c)
      import :: c_ptr
      type(c_ptr), value :: pusher
    end subroutine bodhi_push_abandon

    function bodhi_message() bind(c) result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function bodhi_message
  end interface

contains

  ! What the last call of this thread that failed says.
  function bodhi_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    call c_f_pointer(bodhi_message(), letters, [1024])
    text = ""
    do i = 1, size(letters)
      if (letters(i) == c_null_char) exit
      text = text // letters(i)
    end do
  end function bodhi_error

end module bodhi
